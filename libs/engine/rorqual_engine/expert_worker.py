"""A process that only holds experts: `python -m rorqual_engine.expert_worker JOB`.

It is started by `expert_ranks`, says on stdout when it has loaded, takes part in one step for every
byte that comes in on stdin, and ends with it. Until then it sleeps.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from json import dumps, loads
from pathlib import Path


@dataclass(frozen=True)
class WorkerJob:
    """What a worker is told."""

    model_dir: str
    device: str
    dtype: str
    kernels: str
    keeps_quantized: bool
    placement: str | None
    size: int
    timeout_s: float
    address: str = ""
    rank: int = 0

    def to_json(self) -> str:
        return dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerJob:
        return cls(**loads(text))


def run(job: WorkerJob, ready_fd: int) -> None:
    """Raises: EngineError, GroupLost among them."""
    import torch  # after the threads are settled

    from rorqual_engine.kernels.registry import KernelChoice
    from rorqual_engine.models.deepseek.experts_only import ExpertsOnly
    from rorqual_engine.models.options import LoadOptions
    from rorqual_engine.models.registry import DTYPES, find_device, read_config
    from rorqual_engine.parallel import ExpertGroup, ProcessExchange
    from rorqual_engine.parallel.placement import read_placements

    device = find_device(job.device)
    exchange = ProcessExchange(
        job.address, job.rank, job.size, device=device, timeout_s=job.timeout_s
    )
    tables = read_placements(Path(job.placement)) if job.placement else {}
    options = LoadOptions(
        group=ExpertGroup(exchange, tables),
        kernels=KernelChoice.parse(job.kernels),
        keeps_quantized=job.keeps_quantized,
    )
    model_dir = Path(job.model_dir)
    experts = ExpertsOnly(
        read_config(model_dir), model_dir, device=device, dtype=DTYPES[job.dtype], options=options
    )
    os.write(ready_fd, b"ready\n")
    with torch.inference_mode():
        while os.read(0, 1):
            experts.take_part()


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
