"""Greedy output equals transformers' on the same bf16 weights, up to near ties."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.models import CausalModel
from tokenizers import Tokenizer

NEW_TOKENS = 12
NOISE_SIGMAS = 4.0
"""A differing choice is excused when transformers' two best logits are closer than this many
standard deviations of its own bf16 error, which is measured here against fp32."""

PROMPTS = [
    "What is the capital of France?",
    "写一首关于鲸鱼的诗。",
    "def quicksort(items):\n    ",
    "🐳🐳 tell me about whales 🌊",
    "Write a long story about the sea. " * 25,
]


@dataclass
class Mismatch:
    prompt: str
    step: int
    gap: float


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> transformers.LlamaForCausalLM:
    loaded = transformers.LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    return loaded.eval()


@pytest.fixture(scope="module")
def exact(model_dir: Path) -> transformers.LlamaForCausalLM:
    loaded = transformers.LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    return loaded.eval()


def _chat(tokenizer: Tokenizer, prompt: str) -> list[int]:
    text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    return list(tokenizer.encode(text).ids)


@torch.no_grad()
def _reference_greedy(
    reference: transformers.LlamaForCausalLM, prompt: list[int]
) -> tuple[list[int], torch.Tensor]:
    """transformers' greedy continuation and its logits at every step."""
    out = reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return out.sequences[0][len(prompt) :].tolist(), torch.cat(out.logits).float()


def test_greedy_equals_transformers_up_to_near_ties(
    model: CausalModel,
    reference: transformers.LlamaForCausalLM,
    exact: transformers.LlamaForCausalLM,
    tokenizer: Tokenizer,
) -> None:
    noise = max(_errors(model, reference, exact, _chat(tokenizer, t))[1] for t in PROMPTS[:4])
    mismatches = []
    num_tokens = 0
    for text in PROMPTS:
        prompt = _chat(tokenizer, text)
        expected, logits = _reference_greedy(reference, prompt)
        num_tokens += len(expected)
        for step, token in enumerate(_teacher_forced(model, prompt, expected)):
            if token != expected[step]:
                best = logits[step].topk(2).values
                mismatches.append(Mismatch(text[:20], step, float(best[0] - best[1])))
    print(f"{num_tokens} tokens, bf16 noise {noise:.3f}, differing: {mismatches}")
    assert all(m.gap <= NOISE_SIGMAS * noise for m in mismatches), mismatches
    assert len(mismatches) <= num_tokens // 10


def test_bf16_error_is_no_larger_than_transformers(
    model: CausalModel,
    reference: transformers.LlamaForCausalLM,
    exact: transformers.LlamaForCausalLM,
    tokenizer: Tokenizer,
) -> None:
    errors = [_errors(model, reference, exact, _chat(tokenizer, text)) for text in PROMPTS[:4]]
    print(f"std of bf16 logits against fp32, ours and transformers': {errors}")
    assert sum(e[0] for e in errors) <= 1.25 * sum(e[1] for e in errors)


def _teacher_forced(model: CausalModel, prompt: list[int], forced: list[int]) -> list[int]:
    """Our choice at every step when all earlier tokens are the forced ones."""
    cache = model.new_cache(16)
    chosen = []
    with cache.allocate(model.kv_layout.num_pages(len(prompt) + len(forced))) as lease:
        tokens, start = prompt, 0
        for following in forced:
            logits = model.forward([SequenceChunk(tokens, start, lease.pages, True)], cache)
            chosen.append(int(logits[0].argmax()))
            start += len(tokens)
            tokens = [following]
    return chosen


@torch.no_grad()
def _errors(
    model: CausalModel,
    reference: transformers.LlamaForCausalLM,
    exact: transformers.LlamaForCausalLM,
    prompt: list[int],
) -> tuple[float, float]:
    """Spread of our and transformers' bf16 logits around fp32; a common shift is no error."""
    batch = torch.tensor([prompt])
    truth = exact(batch).logits[0, -1]
    theirs = reference(batch).logits[0, -1].float()
    cache = model.new_cache(2)
    with cache.allocate(2) as lease:
        ours = model.forward([SequenceChunk(prompt, 0, lease.pages, True)], cache)[0]
    return float((ours - truth).std()), float((theirs - truth).std())
