"""The residual streams: read as one, written back as several, mixed among themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rorqual_engine.kernels.deepseek_stream_ops import (
    StreamWeights,
    read_streams,
    supports_streams,
    write_streams,
)
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.norms import exact_product, rms_norm
from rorqual_engine.models.device_kernels import DeviceKernels


@dataclass(frozen=True)
class Mix:
    """One sublayer's weights over n streams, fp32."""

    pre: torch.Tensor
    """[T, n] how the streams are read"""
    post: torch.Tensor
    """[T, n] how the output is written"""
    comb: torch.Tensor
    """[T, n, n] stream j becomes comb[j, k] of stream k; nearly doubly stochastic"""


class HyperConnection:
    """The mixing around one sublayer."""

    def __init__(
        self,
        fn: torch.Tensor,
        base: torch.Tensor,
        scale: torch.Tensor,
        norm: torch.Tensor,
        config: DeepseekConfig,
        kernels: DeviceKernels | None = None,
    ) -> None:
        """fp32. fn: [(2 + n) * n, n * D]; base: [(2 + n) * n]; scale: [3]; norm [D]: the
        sublayer's."""
        self.norm, self.is_lagged = norm, config.streams.is_lagged
        self.fn, self.base, self.scale = fn, base, scale
        self.num_streams = config.streams.num_streams
        self.iterations, self.hc_eps = config.streams.iterations, config.streams.eps
        self.eps, self._kernels = config.eps, kernels
        self._compiled = StreamWeights(
            fn, base, scale, norm, self.eps, self.hc_eps, self.iterations
        )

    @classmethod
    def load(
        cls, weights: DeepseekWeights, prefix: str, part: str, config: DeepseekConfig
    ) -> HyperConnection:
        """prefix: such as layers.0; part: attn or ffn"""
        names = [f"{prefix}.hc_{part}_{name}" for name in ("fn", "base", "scale")]
        fn, base, scale = (weights.vector(name) for name in names)
        norm = weights.vector(f"{prefix}.{part}_norm.weight", (config.hidden,))
        return cls(fn, base, scale, norm, config, weights.kernels)

    def read(self, streams: torch.Tensor, pre: torch.Tensor) -> tuple[torch.Tensor, Mix]:
        """(input of the sublayer [T, D], how its output goes back).

        streams: [T, n, D]; pre: [T, n] of the sublayer before, used when mixing is lagged.
        """
        if self._kernels is not None:
            return self._read_on(self._kernels, streams, pre)
        if is_compiled(streams):
            given = pre if self.is_lagged else None
            x, *mix = read_streams(streams, self._compiled, given)
            return x, Mix(*mix)
        found = self.mix(streams)
        read = collapse(streams, pre if self.is_lagged else found.pre)
        return rms_norm(read, self.norm, self.eps), found

    def _read_on(
        self, kernels: DeviceKernels, streams: torch.Tensor, pre: torch.Tensor
    ) -> tuple[torch.Tensor, Mix]:
        found = Mix(
            *kernels("mix_streams")(
                streams,
                self.fn,
                self.base,
                self.scale,
                eps=self.eps,
                hc_eps=self.hc_eps,
                iterations=self.iterations,
            )
        )
        read = kernels("collapse_streams")(streams, pre if self.is_lagged else found.pre)
        return rms_norm(read, self.norm, self.eps), found

    def write(self, streams: torch.Tensor, output: torch.Tensor, mix: Mix) -> torch.Tensor:
        """The streams after the sublayer."""
        if self._kernels is not None:
            written: torch.Tensor = self._kernels("expand_streams")(
                streams, output, mix.post, mix.comb
            )
            return written
        if is_compiled(streams):
            return write_streams(streams, output.contiguous(), mix.post, mix.comb)
        return expand(streams, output, mix)

    def mix(self, streams: torch.Tensor) -> Mix:
        """streams: [T, n, D]."""
        n = self.num_streams
        logits = stream_logits(streams, self.fn, self.eps)
        pre, post, comb = torch.split(logits, [n, n, n * n], dim=-1)
        pre_base, post_base, comb_base = torch.split(self.base, [n, n, n * n])
        s = self.scale
        return Mix(
            torch.sigmoid(pre * s[0] + pre_base) + self.hc_eps,
            2 * torch.sigmoid(post * s[1] + post_base),
            self._balanced((comb * s[2] + comb_base).view(-1, n, n)),
        )

    def _balanced(self, logits: torch.Tensor) -> torch.Tensor:
        """Sinkhorn: columns, then rows and columns in turn."""
        eps = self.hc_eps
        comb = logits.softmax(-1) + eps
        comb = comb / (comb.sum(1, keepdim=True) + eps)
        for _ in range(self.iterations - 1):
            comb = comb / (comb.sum(2, keepdim=True) + eps)
            comb = comb / (comb.sum(1, keepdim=True) + eps)
        return comb


def is_compiled(streams: torch.Tensor) -> bool:
    """Whether the CPU's kernels take these streams [T, n, D]."""
    is_fit = supports_streams(streams.shape[1], streams.shape[2]) and streams.is_contiguous()
    return is_fit and streams.device.type == "cpu" and streams.dtype == torch.bfloat16


def stream_logits(streams: torch.Tensor, fn: torch.Tensor, eps: float) -> torch.Tensor:
    """fn of the normed streams, fp32 [T, out]; streams: [T, n, D], fn: [out, n * D]."""
    flat = streams.flatten(1).float()
    scale = torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)
    return exact_product(flat * scale, fn)


def collapse(streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """The streams as one row each: [T, D] in streams' dtype, summed in fp32."""
    return (streams.float() * pre[:, :, None]).sum(1).to(streams.dtype)


def expand(streams: torch.Tensor, output: torch.Tensor, mix: Mix) -> torch.Tensor:
    """The streams after a sublayer whose output is [T, D]; one rounding."""
    mixed = torch.einsum("tjk,tjd->tkd", mix.comb, streams.float())
    written = mix.post[:, :, None] * output.float()[:, None, :]
    return (mixed + written).to(streams.dtype)
