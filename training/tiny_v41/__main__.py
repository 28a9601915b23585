"""Makes rorqual-tiny-v41: `train` its model, then its `draft` module, each from where the last run
stopped; `export` a directory to be served."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

_DIRECTORY = Path(".rorqual/training/tiny-v41")
_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "OMP_WAIT_POLICY": "passive",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8192",
}
"""Memory is kept instead of returned and asked for again; threads that wait do not spin; products
of every size that was seen stay compiled."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.tiny_v41", description=__doc__)
    parser.add_argument("command", choices=("train", "draft", "export"))
    parser.add_argument("--directory", type=Path, default=_DIRECTORY)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="of this run; default: to the end")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--out", type=Path, help="of export; default: DIRECTORY/export")
    args = parser.parse_args()
    if any(name not in os.environ for name in _MEMORY):
        os.environ.update({name: os.environ.get(name, value) for name, value in _MEMORY.items()})
        os.execv(sys.executable, [sys.executable, "-m", "training.tiny_v41", *sys.argv[1:]])
    _export(args) if args.command == "export" else _train(args)


def _train(args: argparse.Namespace) -> None:
    from training.tiny_v41.model.sizes import CONFIG
    from training.tiny_v41.run import DRAFT, train
    from training.tiny_v41.stages import DRAFT_STAGES, STAGES
    from training.tiny_v41.trainer import RunOptions

    options = RunOptions(args.directory, STAGES, CONFIG, "model", args.seed, args.steps)
    if args.command == "draft":
        directory = args.directory / DRAFT
        options = RunOptions(directory, DRAFT_STAGES, CONFIG, "draft", args.seed, args.steps)
    train(options, num_processes=args.processes, num_threads=args.threads)


def _export(args: argparse.Namespace) -> None:
    from training.tiny_v41.export import export
    from training.tiny_v41.model.sizes import CONFIG

    out = args.out or args.directory / "export"
    found = export(args.directory, out, CONFIG)
    sys.stdout.write(json.dumps({"exported": str(out), **(asdict(found) if found else {})}) + "\n")


if __name__ == "__main__":
    main()
