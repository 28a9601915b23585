"""How unevenly families of exercises load the experts of every layer: numbers and a picture.

A load of 1 is an expert's even share of its layer's rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from safetensors.torch import load_file

from bench.report import emit
from training.tiny_v41.evaluation import batches_of_samples, held_out_samples
from training.tiny_v41.learner import Learner
from training.tiny_v41.measured import Measured
from training.tiny_v41.model.weights import join_experts
from training.tiny_v41.rendering import Renderer
from training.tiny_v41.tasks.mixture import FAMILIES

_RECALL_TOKENS = 1000
Loads = dict[str, list[list[float]]]
"""By family: [layers][experts]"""


def learner_of(model_dir: Path) -> Learner:
    """The model of a directory, as training has it."""
    fields = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(model_dir / "model.safetensors")
    weights = join_experts({name: value.float() for name, value in tensors.items()})
    return Learner(fields, weights)


def loads_of(learner: Learner, renderer: Renderer, seed: int, count: int) -> Loads:
    """Over all rows that layers run of held-out exercises; count: of a family."""
    loads = {}
    for family in FAMILIES:
        length = _RECALL_TOKENS if family == "recall" else 0
        samples = held_out_samples(renderer, family, length, seed, count)
        found = Measured()
        for batch in batches_of_samples(learner, samples):
            found.add(learner.measure([batch], selects=True))
        assert found.counts is not None
        counts = found.counts.sum(1).double()
        loads[family] = (counts / counts.mean(1, keepdim=True)).tolist()
    return loads


def draw(loads: Loads, path: Path) -> None:
    """One panel a layer, one line of squares a family."""
    values = torch.tensor([loads[family] for family in loads])
    num_layers = values.shape[1]
    figure = Figure(figsize=(3.2 * (num_layers // 2), 5.6), layout="constrained")
    panels = figure.subplots(2, num_layers // 2, sharex=True, sharey=True)
    scale = ScalarMappable(Normalize(0, 4), "viridis")
    for layer, panel in enumerate(panels.flat):
        panel.imshow(values[:, layer].numpy(), norm=scale.norm, cmap=scale.cmap, aspect="auto")
        panel.set_title(f"layer {layer}", fontsize=9)
        panel.set_yticks(range(len(loads)), list(loads), fontsize=8)
        panel.set_xlabel("expert", fontsize=8)
    figure.colorbar(scale, ax=panels, label="load, 1 = an even share")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.tiny_v41.expert_load", description=__doc__
    )
    parser.add_argument("--model", type=Path, default=Path("models/tiny-v41"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=48, help="exercises of a family")
    parser.add_argument("--write", type=Path, help="expert-load, to become .json and .png")
    args = parser.parse_args()
    loads = loads_of(learner_of(args.model), Renderer(args.model), args.seed, args.count)
    for family, layers in loads.items():
        peaks = [round(max(layer), 2) for layer in layers]
        emit(f"expert load {family}", max(peaks), "of an even share", by_layer=peaks)
    if args.write:
        _write(args.write, {"model": args.model.name, "seed": args.seed, "loads": loads})
        draw(loads, args.write.with_suffix(".png"))
    sys.stdout.flush()


def _write(path: Path, content: dict[str, Any]) -> None:
    rounded = json.loads(json.dumps(content), parse_float=lambda text: round(float(text), 3))
    path.with_suffix(".json").write_text(json.dumps(rounded) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
