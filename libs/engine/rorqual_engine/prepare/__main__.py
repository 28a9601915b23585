"""`python -m rorqual_engine.prepare [--model ID_OR_PATH] [--out DIR]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rorqual_engine.errors import EngineError
from rorqual_engine.prepare import DEFAULT_MODEL, prepare_model
from rorqual_engine.prepare.warm import warm_kernels


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rorqual_engine.prepare")
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="model id, GGUF file or Hugging Face directory"
    )
    parser.add_argument("--out", type=Path, help="directory to make")
    parser.add_argument("--verify", action="store_true", help="check every file's sha256")
    options = parser.parse_args(arguments)
    try:
        directory = prepare_model(options.model, options.out, _say, full_check=options.verify)
        warm_kernels(directory, _say)
    except (EngineError, OSError) as err:
        sys.stderr.write(f"error: {err}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        return 130
    _say(f"model directory: {directory}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
