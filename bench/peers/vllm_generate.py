"""Peer: vLLM's CPU build in process, greedy, bf16. Runs in its own virtual environment.

stdin: {"model_dir", "prompts": [[ids]], "max_new_tokens", "rounds"}
stdout: {"tokens_per_s": [one a round]}
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    """Run one warm-up and the asked rounds."""
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
    prompts = [{"prompt_token_ids": p} for p in job["prompts"]]
    rates = []
    for round_index in range(job["rounds"] + 1):
        n = job["max_new_tokens"] if round_index else 8
        params = SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True)
        started_s = time.perf_counter()
        outs = llm.generate(prompts, params, use_tqdm=False)
        elapsed_s = time.perf_counter() - started_s
        if round_index:
            rates.append(sum(len(o.outputs[0].token_ids) for o in outs) / elapsed_s)
    print("RESULT " + json.dumps({"tokens_per_s": rates}))


main()
