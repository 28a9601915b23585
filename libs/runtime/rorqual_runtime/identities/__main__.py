"""`python -m rorqual_runtime.identities DIRECTORY`: identities for a fleet of containers."""

from __future__ import annotations

import argparse
from pathlib import Path

from rorqual_runtime.identities.issue import issue


def main() -> None:
    """Make what is missing; what is there stays."""
    parser = argparse.ArgumentParser(description="Make the identities of a fleet.")
    parser.add_argument("directory", type=Path, help="one folder an identity goes in here")
    parser.add_argument("--owner", type=int, help="user id that the services run as")
    options = parser.parse_args()
    try:
        issue(options.directory, owner=options.owner)
    except (OSError, ValueError) as error:
        raise SystemExit(f"identities: {error}") from error


if __name__ == "__main__":
    main()
