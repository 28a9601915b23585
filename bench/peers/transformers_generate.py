"""Peer: transformers `generate`, one padded batch, greedy, bf16.

stdin: {"model_dir", "batches": [[[ids]]], "max_new_tokens", "rounds"}
stdout: {"tokens_per_s": [[one a round] for each batch]}
"""

from __future__ import annotations

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    """Run every batch."""
    job = json.load(sys.stdin)
    model = AutoModelForCausalLM.from_pretrained(job["model_dir"], dtype=torch.bfloat16).eval()
    rates = [run(model, prompts, job) for prompts in job["batches"]]
    print(json.dumps({"tokens_per_s": rates}))


def run(model, prompts, job):
    """One warm-up and the asked rounds."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    n = job["max_new_tokens"]
    rates = []
    with torch.inference_mode():
        for round_index in range(job["rounds"] + 1):
            started_s = time.perf_counter()
            out = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=n if round_index else 8,
                min_new_tokens=n if round_index else 8,
                do_sample=False,
                pad_token_id=0,
            )
            elapsed_s = time.perf_counter() - started_s
            if round_index:
                rates.append((out.shape[1] - width) * len(prompts) / elapsed_s)
    return rates


main()
