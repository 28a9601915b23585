"""Peer: vLLM's CPU build in process, greedy, bf16. Runs in its own virtual environment.

stdin: {"model_dir", "batches": [[[ids]]], "max_new_tokens", "rounds"}
stdout: {"tokens_per_s": [[one a round] for each batch]}
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    """Run every batch."""
    job = json.load(sys.stdin)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams  # after the environment is set

    llm = LLM(
        job["model_dir"],
        dtype="bfloat16",
        max_model_len=4096,
        max_num_seqs=64,
        enable_prefix_caching=False,
    )
    rates = [run(llm, SamplingParams, prompts, job) for prompts in job["batches"]]
    print("RESULT " + json.dumps({"tokens_per_s": rates}))


def run(llm, sampling_params, token_ids, job):
    """One warm-up and the asked rounds."""
    prompts = [{"prompt_token_ids": ids} for ids in token_ids]
    rates = []
    for round_index in range(job["rounds"] + 1):
        n = job["max_new_tokens"] if round_index else 8
        params = sampling_params(temperature=0.0, max_tokens=n, ignore_eos=True)
        started_s = time.perf_counter()
        outs = llm.generate(prompts, params, use_tqdm=False)
        elapsed_s = time.perf_counter() - started_s
        if round_index:
            rates.append(sum(len(o.outputs[0].token_ids) for o in outs) / elapsed_s)
    return rates


main()
