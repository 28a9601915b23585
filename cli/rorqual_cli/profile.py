"""`rorqual profile import`: a model's fixed prompt texts, written beside its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from rorqual_recipe.profile import PROFILE_FILE, parse_profile

from rorqual_cli.deepseek_profile import deepseek_profile
from rorqual_cli.problems import CliError


def import_profile(version: str, directory: Path) -> Path:
    """Write DeepSeek's profile of a version into `directory`; returns the file.

    Raises: CliError when the package is missing or the directory is none.
    """
    if not directory.is_dir():
        raise CliError(f"{directory} is no directory", "--out takes the checkpoint's directory")
    path = directory / PROFILE_FILE
    text = json.dumps(deepseek_profile(version), ensure_ascii=False, indent=1) + "\n"
    parse_profile(text.encode(), path)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path
