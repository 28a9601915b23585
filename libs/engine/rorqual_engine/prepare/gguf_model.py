"""Llama-family GGUF files, read as Hugging Face configuration and weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

from rorqual_engine.errors import CorruptModel, ModelNotFound, UnsupportedModel

FloatArray = npt.NDArray[np.float32]

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


class GgufModel:
    """One GGUF file: its metadata, its tokenizer tables and its tensors in fp32."""

    def __init__(self, path: Path) -> None:
        """Raises: ModelNotFound, CorruptModel, UnsupportedModel."""
        if not path.is_file():
            raise ModelNotFound(path, "no such GGUF file")
        self.path = path
        try:
            self._reader = GGUFReader(str(path))
        except (ValueError, IndexError, KeyError) as err:
            raise CorruptModel(path, f"not a readable GGUF file ({err})") from err
        self.architecture = str(self.field("general.architecture"))
        if self.architecture not in _ARCHITECTURES:
            raise UnsupportedModel(f"{path.name} has architecture {self.architecture!r}")

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata value; default when the file has none."""
        found = self._reader.get_field(name)
        return default if found is None else found.contents()

    @property
    def num_tensors(self) -> int:
        return len(self._reader.tensors)

    def hf_config(self) -> dict[str, Any]:
        """The content of config.json."""
        arch = self.architecture
        heads = int(self.field(f"{arch}.attention.head_count"))
        hidden = int(self.field(f"{arch}.embedding_length"))
        names = {tensor.name for tensor in self._reader.tensors}
        return {
            "architectures": [_ARCHITECTURES[arch]],
            "model_type": arch,
            "torch_dtype": "bfloat16",
            "hidden_size": hidden,
            "intermediate_size": int(self.field(f"{arch}.feed_forward_length")),
            "num_hidden_layers": int(self.field(f"{arch}.block_count")),
            "num_attention_heads": heads,
            "num_key_value_heads": int(self.field(f"{arch}.attention.head_count_kv", heads)),
            "head_dim": int(self.field(f"{arch}.rope.dimension_count", hidden // heads)),
            "hidden_act": "silu",
            "max_position_embeddings": int(self.field(f"{arch}.context_length")),
            "rms_norm_eps": _shortest(self.field(f"{arch}.attention.layer_norm_rms_epsilon")),
            "rope_theta": float(self.field(f"{arch}.rope.freq_base", 10000.0)),
            "tie_word_embeddings": "output.weight" not in names,
            "attention_bias": "blk.0.attn_q.bias" in names,
            "mlp_bias": False,
            "vocab_size": len(self.field("tokenizer.ggml.tokens")),
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
        }

    def hf_tensors(self) -> Iterator[tuple[str, FloatArray]]:
        """Every weight under its Hugging Face name, in Hugging Face order of rows."""
        config = self.hf_config()
        for tensor in self._reader.tensors:
            name = _hf_name(tensor.name)
            if name is None:
                raise UnsupportedModel(f"{self.path.name} has an unknown tensor {tensor.name}")
            weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            if self.architecture == "llama" and ".attn_q." in tensor.name:
                weight = unpermute_rope_rows(weight, config["num_attention_heads"])
            elif self.architecture == "llama" and ".attn_k." in tensor.name:
                weight = unpermute_rope_rows(weight, config["num_key_value_heads"])
            yield name, weight


def unpermute_rope_rows(weight: FloatArray, num_heads: int) -> FloatArray:
    """Rows of a q or k projection from llama.cpp's order to Hugging Face's.

    GGUF stores, per head, the rotated pairs next to each other (0, d/2, 1, d/2+1, ...);
    Hugging Face keeps the first halves and then the second halves.
    """
    rows = weight.shape[0]
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def _hf_name(gguf_name: str) -> str | None:
    if gguf_name in _TOP_NAMES:
        return _TOP_NAMES[gguf_name]
    parts = gguf_name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _BLOCK_NAMES:
        return f"model.layers.{parts[1]}.{_BLOCK_NAMES[parts[2]]}.{parts[3]}"
    return None


def _shortest(value: float) -> float:
    """The decimal someone wrote before it became fp32: 1e-05 for 9.999999747378752e-06."""
    return float(np.format_float_scientific(np.float32(value)))
