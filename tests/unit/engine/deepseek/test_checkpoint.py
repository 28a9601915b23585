"""What a checkpoint's bytes stand for, wherever its tensors lie and whatever they are called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from rorqual_engine.errors import CorruptModel, EngineError, ModelNotFound
from rorqual_engine.models.deepseek.checkpoint import INDEX_NAME, DeepseekWeights
from rorqual_engine.models.deepseek.formats import QuantizedLinear, quantized
from rorqual_engine.models.linear import Linear
from safetensors.torch import save_file

from tests.support.quantized_checkpoints import E2M1, fp8_blocks, mxfp4

CPU = torch.device("cpu")
BYTES = torch.arange(256, dtype=torch.int32).to(torch.uint8)


def _weights(directory: Path, **options: bool) -> DeepseekWeights:
    return DeepseekWeights(directory, CPU, torch.bfloat16, **options)


def _saved(directory: Path, **tensors: torch.Tensor) -> DeepseekWeights:
    save_file(
        {name.replace("__", "."): t for name, t in tensors.items()}, directory / "m.safetensors"
    )
    return _weights(directory)


def _e4m3_value(code: int) -> float:
    sign = -1.0 if code & 128 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


@pytest.mark.parametrize("exponent", [-20, -3, 0, 11])
def test_every_e4m3_code(exponent: int) -> None:
    scale = torch.full((1, 2), 2.0**exponent).to(torch.float8_e8m0fnu)
    found = quantized(BYTES.view(torch.float8_e4m3fn)[None], scale).dequantized(torch.bfloat16)
    expected = torch.tensor([[_e4m3_value(code) * 2.0**exponent for code in range(256)]])
    assert torch.equal(found.isnan(), expected.isnan())
    is_number = ~expected.isnan()
    assert torch.equal(
        found[is_number].view(torch.int16), expected[is_number].bfloat16().view(torch.int16)
    )
    assert torch.equal(found[is_number].double(), expected[is_number].double())


def test_every_pair_of_e2m1_codes_with_every_scale() -> None:
    """All 256 bytes x 255 powers of two, exact wherever bf16 can be."""
    values = BYTES.repeat(255, 1)
    scales = BYTES[:255, None].expand(255, 16).contiguous()
    found = quantized(values, scales.view(torch.float8_e8m0fnu)).dequantized(torch.bfloat16)
    signed = torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=torch.float64)
    codes = BYTES.long()
    pairs = torch.stack([signed[codes & 15], signed[codes >> 4]], dim=-1).flatten()
    powers = torch.exp2(torch.arange(255, dtype=torch.float64) - 127)
    expected = (powers[:, None] * pairs).float().bfloat16()
    assert torch.equal(found.view(torch.int16), expected.view(torch.int16))
    assert torch.equal(found[9:252].double(), (powers[:, None] * pairs)[9:252])


def test_scales_called_uint8_are_powers_of_two() -> None:
    values = BYTES[None]
    scales = torch.tensor([[120 + i for i in range(16)]], dtype=torch.uint8)
    as_e8m0 = quantized(values, scales.view(torch.float8_e8m0fnu)).dequantized(torch.float32)
    assert torch.equal(quantized(values, scales).dequantized(torch.float32), as_e8m0)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float8_e8m0fnu])
def test_blocks_at_the_edges_are_smaller(tmp_path: Path, scale_dtype: torch.dtype) -> None:
    matrix = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    values, scales = fp8_blocks(matrix, scale_dtype)
    assert scales.shape == (2, 3)
    found = _saved(tmp_path, a__weight=values, a__scale=scales).get("a.weight", (200, 300))
    for r, c in [(0, 0), (127, 128), (128, 127), (199, 299)]:
        exact = values[r, c].float() * scales[r // 128, c // 128].float()
        assert found[r, c] == exact.bfloat16()
    assert bool(((found.float() - matrix).abs() <= matrix.abs() / 13 + 1e-2).all())


@pytest.mark.parametrize("form", ["fp8", "mxfp4"])
def test_matrices_kept_as_stored_give_the_same_bits(tmp_path: Path, form: str) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name in "ab":
        matrix = torch.randn(96, 64, generator=generator)
        stored = mxfp4(matrix) if form == "mxfp4" else fp8_blocks(matrix, torch.float32)
        tensors[f"{name}__weight"], tensors[f"{name}__scale"] = stored
    names = ["a.weight", "b.weight"]
    dense = _saved(tmp_path, **tensors).linear(*names)
    kept = _weights(tmp_path, keeps_quantized=True).linear(*names)
    assert type(dense) is Linear and isinstance(kept, QuantizedLinear)
    assert kept.num_bytes < (0.3 if form == "mxfp4" else 0.55) * 2 * 96 * 64 * 2
    for num_rows in (1, 7, 600):
        rows = torch.randn(num_rows, 64, generator=generator).bfloat16()
        assert torch.equal(dense(rows), kept(rows))


def test_only_the_files_asked_for_are_opened(tmp_path: Path) -> None:
    """A rank needs the files of its own experts and no others."""
    tensors = {f"layers.0.ffn.experts.{e}.w1.weight": torch.full((2, 2), float(e)) for e in (0, 1)}
    for e, (name, tensor) in enumerate(tensors.items()):
        save_file({name: tensor}, tmp_path / f"part-{e}.safetensors")
    index = {name: f"part-{e}.safetensors" for e, name in enumerate(tensors)}
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": index}))
    (tmp_path / "part-0.safetensors").unlink()
    weights = _weights(tmp_path)
    assert weights.get("layers.0.ffn.experts.1.w1.weight").unique().tolist() == [1.0]
    with pytest.raises(ModelNotFound, match=r"part-0\.safetensors is missing"):
        weights.get("layers.0.ffn.experts.0.w1.weight")


def test_experts_stacked_in_one_tensor(tmp_path: Path) -> None:
    gate_up = torch.arange(3 * 4 * 2).float().view(3, 4, 2)
    down = torch.arange(3 * 2 * 2).float().view(3, 2, 2)
    prefix = "model.layers.0.mlp.experts"
    save_file(
        {f"{prefix}.gate_up_proj": gate_up, f"{prefix}.down_proj": down},
        tmp_path / "m.safetensors",
    )
    weights = _weights(tmp_path)
    for e in range(3):
        for part, expected in (
            ("w1", gate_up[e, :2]),
            ("w3", gate_up[e, 2:]),
            ("w2", down[e]),
        ):
            found = weights.get(f"layers.0.ffn.experts.{e}.{part}.weight", tuple(expected.shape))
            assert torch.equal(found.float(), expected)


def test_reading_changes_nothing_in_the_file(tmp_path: Path) -> None:
    weights = _saved(tmp_path, a__weight=torch.ones(2, 2, dtype=torch.bfloat16))
    before = (tmp_path / "m.safetensors").read_bytes()
    weights.get("a.weight").fill_(7)
    assert weights.get("a.weight").unique().tolist() == [1.0]
    assert (tmp_path / "m.safetensors").read_bytes() == before


FP8 = torch.zeros(4, 4).to(torch.float8_e4m3fn)
FAULTS: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "missing": ({"b__weight": torch.ones(2, 2)}, r"tensor a\.weight is missing"),
    "shape": (
        {"a__weight": torch.ones(2, 3)},
        r"m\.safetensors is damaged: tensor a\.weight has shape \(2, 3\), config\.json says",
    ),
    "no scales": ({"a__weight": FP8}, r"tensor a\.weight has dtype torch\.float8_e4m3fn and no sc"),
    "whole numbers": ({"a__weight": torch.ones(4, 4, dtype=torch.int32)}, "dtype torch.int32 and"),
    "scales without need": (
        {"a__weight": torch.ones(4, 4), "a__scale": torch.ones(1, 1)},
        r"a\.weight has scales, but dtype torch\.float32",
    ),
    "another grid": (
        {"a__weight": FP8, "a__scale": torch.ones(2, 1)},
        r"a\.weight of 4 x 4 values has scales of shape \(2, 1\)",
    ),
    "scale that is no number": (
        {"a__weight": FP8, "a__scale": torch.full((1, 1), float("nan"))},
        r"a\.weight has a scale that is no number",
    ),
    "two names of one": (
        {"layers__0__ffn_norm__weight": torch.ones(4),
         "model__layers__0__post_attention_layernorm__weight": torch.ones(4)},
        "is also",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_file_and_tensor(tmp_path: Path, fault: str) -> None:
    tensors, message = FAULTS[fault]
    with pytest.raises(CorruptModel, match=message):
        _saved(tmp_path, **tensors).get("a.weight", (4, 4))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (torch.zeros(3), "has dtype torch.float32, not whole"),
        (torch.tensor([0, 1, 4]), r"a\.tid2eid has numbers outside 0\.\.3"),
        (torch.tensor([0, -1, 3]), r"a\.tid2eid has numbers outside 0\.\.3"),
    ],
)
def test_tables_hold_whole_numbers_below_their_limit(
    tmp_path: Path, numbers: torch.Tensor, message: str
) -> None:
    weights = _saved(tmp_path, a__tid2eid=numbers, b__tid2eid=torch.tensor([3, 0, 1]).int())
    assert weights.whole_numbers("b.tid2eid", (3,), 4).tolist() == [3, 0, 1]
    with pytest.raises(CorruptModel, match=message):
        weights.whole_numbers("a.tid2eid", (3,), 4)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-1], "tensor a.weight lies outside the file"),
        (lambda raw: (1 << 40).to_bytes(8, "little") + raw[8:], "does not fit the file"),
        (lambda raw: raw[:8] + b"?" + raw[9:], "its header is not JSON"),
        (lambda raw: raw.replace(b'"BF16"', b'"F4_X"'), "tensor a.weight has dtype F4_X; known"),
        (lambda raw: raw.replace(b"[2,2]", b"[2,3]"), "has 8 bytes, not those of shape"),
        (lambda raw: b"", "does not fit"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, damage: object, message: str) -> None:
    _saved(tmp_path, a__weight=torch.ones(2, 2, dtype=torch.bfloat16))
    path = tmp_path / "m.safetensors"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(CorruptModel, match=message):
        _weights(tmp_path).get("a.weight")


@pytest.mark.parametrize(
    ("index", "error"),
    [("[]", CorruptModel), ('{"weight_map": {"a.weight": "../m.safetensors"}}', CorruptModel),
     ('{"weight_map": {"c.weight": "m.safetensors"}}', CorruptModel)],
)  # fmt: skip
def test_a_wrong_index_is_refused(tmp_path: Path, index: str, error: type[EngineError]) -> None:
    _saved(tmp_path, a__weight=torch.ones(2, 2))
    (tmp_path / INDEX_NAME).write_text(index)
    with pytest.raises(error):
        _weights(tmp_path).get("c.weight")


def test_an_empty_directory_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        _weights(tmp_path)
    shutil.rmtree(tmp_path)
