"""Which directory a fleet serves."""

from __future__ import annotations

from pathlib import Path

import pytest
from rorqual_cli.model import ensure_model, prepared_directory
from rorqual_cli.problems import CliError


def say(_line: str) -> None:
    return


def test_equal_names_of_different_files_are_different_models(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "model.gguf" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(b"x")
    first, second = (prepared_directory(str(path), tmp_path) for path in paths)
    assert first != second
    assert prepared_directory(str(paths[0]), tmp_path) == first
    paths[0].write_bytes(b"changed")
    assert prepared_directory(str(paths[0]), tmp_path) != first


async def test_a_shipped_model_is_served_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, home = tmp_path / "models" / "little", tmp_path / "home"
    shipped.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (shipped / name).touch()
    monkeypatch.setattr("rorqual_cli.model.SHIPPED_MODELS", tmp_path / "models")
    assert await ensure_model("little", home, say) == shipped
    assert not home.exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "*.safetensors"])
async def test_an_incomplete_directory_is_refused_before_anything_starts(
    tmp_path: Path, name: str
) -> None:
    for present in {"config.json", "tokenizer.json", "model.safetensors"} - {name}:
        if name != "*.safetensors" or present != "model.safetensors":
            (tmp_path / present).touch()
    with pytest.raises(CliError, match=name.replace("*", r"\*")):
        await ensure_model(str(tmp_path), tmp_path / "home", say)
