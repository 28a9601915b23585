"""Makes the draft module of SmolLM2-135M-Instruct: `texts` has the model write what it learns from,
`train` goes on from where the last run stopped, `export` writes what is shipped."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rorqual_engine.device import configure_threads

_DIRECTORY = Path(".rorqual/training/smollm2-draft")
_MODEL = Path(".rorqual/models/smollm2-135m-instruct")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.smollm2_draft", description=__doc__)
    parser.add_argument("command", choices=("texts", "train", "export"))
    parser.add_argument("--directory", type=Path, default=_DIRECTORY)
    parser.add_argument("--model", type=Path, default=_MODEL)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shards", type=int, default=12, help="of texts: files of conversations")
    parser.add_argument("--total", type=int, default=3000, help="steps of the whole training")
    parser.add_argument("--steps", type=int, help="of this run; default: to the end")
    parser.add_argument("--out", type=Path, help="of export; default: DIRECTORY/export")
    args = parser.parse_args()
    configure_threads(args.threads)
    {"texts": _texts, "train": _train, "export": _export}[args.command](args)


def _texts(args: argparse.Namespace) -> None:
    from rorqual_engine.models import load_model
    from rorqual_engine.runner import BareEngine
    from tokenizers import Tokenizer

    from training.smollm2_draft.run import TEXTS
    from training.smollm2_draft.texts import write_texts

    engine = BareEngine(load_model(args.model), num_pages=224, max_running=64)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    began = time.monotonic()
    for shard, num_tokens in write_texts(args.directory / TEXTS, engine, tokenizer, args.shards):
        seconds = round(time.monotonic() - began, 1)
        _say({"shard": shard, "answer_tokens": num_tokens, "seconds": seconds})
        began = time.monotonic()


def _train(args: argparse.Namespace) -> None:
    from training.smollm2_draft.run import RunOptions, train

    train(RunOptions(args.directory, args.model, args.total, args.steps))


def _export(args: argparse.Namespace) -> None:
    from training.smollm2_draft.export import export

    out = args.out or args.directory / "export"
    _say({"exported": str(out), **asdict(export(args.directory, args.model, out))})


def _say(line: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
