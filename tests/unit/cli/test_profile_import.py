"""`rorqual profile import deepseek`: the profile is complete, and its absence is said in a line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rorqual_cli.__main__ import main
from rorqual_recipe.profile import PROFILE_FILE, read_profile

PACKAGE = "deepseek_recipe"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as caught:
        main(["profile", "import", "deepseek", *arguments])
    said = capsys.readouterr()
    return int(caught.value.code or 0), said.out + said.err


@pytest.mark.parametrize("version", ["v4", "v4.1"])
def test_the_profile_is_written_beside_the_checkpoint(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(capsys, "--out", str(tmp_path), "--version", version)
    assert (code, PROFILE_FILE in said) == (0, True)
    profile = read_profile(tmp_path)
    assert profile is not None
    assert profile.encoding == f"deepseek-{version}"
    assert profile.source.startswith("deepseek-recipe ")
    assert all(profile.tools.before) and profile.tools.after
    assert profile.sampling.thinking.temperature.fixed == 1.0
    assert profile.sampling.plain.default_max_tokens == 8192
    assert "input" in profile.functions["apply_patch"].parameters["properties"]
    assert (profile.image_text is None) == (version == "v4.1")
    assert "Zugvogel" not in json.dumps(profile.model_dump(mode="json"))


def test_a_missing_package_is_named_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    code, said = run(capsys, "--out", str(tmp_path))
    assert code == 1
    assert said.count("\n") == 1
    assert "deepseek-recipe is not installed; pip install deepseek-recipe" in said
    assert not (tmp_path / PROFILE_FILE).exists()


def test_the_directory_has_to_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(capsys, "--out", str(tmp_path / "nowhere"))
    assert code == 1
    assert "is no directory" in said
