"""A model without vision tower is told apart, and the refusal helps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rorqual_runtime.errors import ErrorCode
from rorqual_vision.service import refusal
from rorqual_vision.tower import ModelDescription, ModelDescriptionError, read_description

from tests.support.tiny_model_dir import make_model_dir


def test_a_text_model_has_no_tower_and_the_refusal_names_it(tmp_path: Path) -> None:
    model_dir = make_model_dir(tmp_path / "some-model")
    (model_dir / "rorqual.json").write_text(json.dumps({"id": "tiny-1m"}))
    error = refusal(read_description(model_dir))
    assert error.code == ErrorCode.UNSUPPORTED
    assert error.message == (
        "model tiny-1m has no vision tower; remove the image or serve a model with one"
    )
    assert error.param == "messages"


def test_without_a_manifest_the_directory_names_the_model(tmp_path: Path) -> None:
    assert read_description(make_model_dir(tmp_path / "some-model")).model_id == "some-model"


def test_a_tower_is_seen_in_the_configuration(tmp_path: Path) -> None:
    model_dir = make_model_dir(tmp_path / "m", vision_config={"model_type": "siglip"})
    description = read_description(model_dir)
    assert description.tower_type == "siglip"
    assert "siglip" in refusal(description).message


def test_an_unreadable_model_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelDescriptionError, match=r"config\.json"):
        read_description(tmp_path)


def test_the_service_imports_no_torch() -> None:
    code = "import sys, rorqual_vision.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert refusal(ModelDescription("m", None)).details == {}
