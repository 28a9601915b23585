"""What transformers would have said: the oracle of the token-equality tests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


@dataclass(frozen=True)
class Mismatch:
    """One output position where the fleet's token is not transformers' argmax."""

    position: int
    gap: float
    """Logit of transformers' choice minus logit of the fleet's token, in bf16."""
    noise: float
    """Standard deviation of transformers' own bf16 error at this row, against float32."""
    step: float
    """Between neighbouring bf16 numbers at the larger logit: the gap is known no better."""

    @property
    def is_near_tie(self) -> bool:
        """The gap is within what bf16 rounding moves: two logits, each off in both programs,
        differ by two deviations, and two of those are allowed. Most logits of a row are smaller
        than these two and rounded more finely, so a step comes on top."""
        return self.gap <= 4 * self.noise + self.step


class GreedyOracle:
    """Compares an output with transformers' greedy choice at each position, same history."""

    def __init__(self, model_dir: Path) -> None:
        self._bf16 = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).eval()
        self._fp32 = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()

    @torch.inference_mode()
    def mismatches(self, prompt_ids: list[int], output_ids: list[int]) -> list[Mismatch]:
        """Positions of output_ids that are not the argmax, with gap and measured noise."""
        ids = torch.tensor([prompt_ids + output_ids])
        keep = len(output_ids) + 1
        low = self._bf16(ids, logits_to_keep=keep).logits[0, :-1].float()
        chosen = torch.tensor(output_ids)
        rows = (low.argmax(-1) != chosen).nonzero().flatten().tolist()
        if not rows:
            return []
        high = self._fp32(ids, logits_to_keep=keep).logits[0, :-1]
        found = []
        for row in rows:
            pair = torch.stack([low[row].argmax(), chosen[row]])
            gap = (low[row, pair[0]] - low[row, pair[1]]).item()
            noise = (low[row] - high[row]).std().item()
            step = 2.0 ** (math.frexp(low[row, pair[0]].item())[1] - 8)
            found.append(Mismatch(row, gap, noise, step))
        return found
