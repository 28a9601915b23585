"""A process that only holds experts: `python -m rorqual_engine.expert_worker JOB`.

It is started by `expert_ranks`, says on stdout when it has loaded, takes part in a step or a move
of experts for every message that comes in on stdin, and ends with it. Until then it sleeps.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rorqual_policy.expert_placement import Cards

if TYPE_CHECKING:  # torch comes after the threads are settled
    from rorqual_engine.parallel import ExpertGroup, ExpertPlacement, ProcessExchange


@dataclass(frozen=True)
class WorkerJob:
    """What a worker is told."""

    model_dir: str
    device: str
    dtype: str
    kernels: str
    keeps_quantized: bool
    placement: str | None
    num_redundant: int
    num_nodes: int
    split: str
    size: int
    timeout_s: float
    address: str = ""
    rank: int = 0

    def to_json(self) -> str:
        return dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerJob:
        return cls(**loads(text))

    def tables(self) -> dict[int, ExpertPlacement]:
        """Those to start with. Raises: BadPlacement."""
        from rorqual_engine.parallel.placement import read_placements

        return read_placements(Path(self.placement)) if self.placement else {}

    def group(self, exchange: ProcessExchange) -> ExpertGroup:
        """Raises: BadPlacement."""
        from rorqual_engine.parallel import ExpertGroup
        from rorqual_engine.parallel.split import SplitBy

        redundant, nodes = self.num_redundant, self.num_nodes
        return ExpertGroup(exchange, self.tables(), redundant, nodes, SplitBy(self.split))


STEP = b"s"
"""The message that wakes a worker for one step."""
_MOVE = b"m"


def move_message(layer: int, table: Cards) -> bytes:
    """For one change of a layer's table."""
    body = dumps([layer, table]).encode()
    return _MOVE + len(body).to_bytes(4, "little") + body


def messages(stdin: BinaryIO) -> Iterator[tuple[int, Cards] | None]:
    """Until stdin ends: (layer, its next table), or None for a step."""
    while kind := stdin.read(1):
        if kind == STEP:
            yield None
            continue
        layer, table = loads(stdin.read(int.from_bytes(stdin.read(4), "little")))
        yield layer, tuple(tuple(experts) for experts in table)


def run(job: WorkerJob, ready_fd: int) -> None:
    """Raises: EngineError, GroupLost among them."""
    import torch  # after the threads are settled

    from rorqual_engine.huge_pages import move_to_huge_pages
    from rorqual_engine.kernels.registry import KernelChoice
    from rorqual_engine.models.deepseek.experts_only import ExpertsOnly
    from rorqual_engine.models.deepseek.remote_experts import MoveFailed
    from rorqual_engine.models.options import LoadOptions
    from rorqual_engine.models.registry import DTYPES, find_device, read_config
    from rorqual_engine.parallel import ProcessExchange

    device = find_device(job.device)
    exchange = ProcessExchange(
        job.address, job.rank, job.size, device=device, timeout_s=job.timeout_s
    )
    options = LoadOptions(
        group=job.group(exchange),
        kernels=KernelChoice.parse(job.kernels),
        keeps_quantized=job.keeps_quantized,
    )
    model_dir = Path(job.model_dir)
    experts = ExpertsOnly(
        read_config(model_dir), model_dir, device=device, dtype=DTYPES[job.dtype], options=options
    )
    move_to_huge_pages(device)
    os.write(ready_fd, b"ready\n")
    with torch.inference_mode():
        for move in messages(sys.stdin.buffer):
            if move is None:
                experts.take_part()
                continue
            with suppress(MoveFailed):  # rank 0 says so
                experts.move_experts(*move)


def main() -> None:
    from rorqual_engine.device import configure_threads
    from rorqual_engine.errors import EngineError

    job = WorkerJob.from_json(sys.argv[1])
    ready_fd = os.dup(1)
    os.dup2(2, 1)  # libraries print to stdout
    configure_threads()
    code = 0
    try:
        run(job, ready_fd)
    except EngineError as err:
        sys.stderr.write(f"expert rank {job.rank} of {job.size}: {err}\n")
        code = 1
    os._exit(code)  # threads of a group whose ranks end in any order may never end


if __name__ == "__main__":
    main()
