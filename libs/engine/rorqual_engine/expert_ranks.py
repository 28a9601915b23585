"""A model whose experts are shared with processes of its own: this one leads the group."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from rorqual_engine.batch import SequenceChunk
from rorqual_engine.errors import BadChunk, UnsupportedModel
from rorqual_engine.expert_worker import WorkerJob
from rorqual_engine.kernels.registry import KernelChoice
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_engine.models.deepseek.config import V4_ARCHITECTURE, V41_ARCHITECTURE
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.models.registry import find_device, load_model, read_config
from rorqual_engine.parallel import ExpertGroup, GroupLost, ProcessExchange
from rorqual_engine.parallel.placement import read_placements

log = logging.getLogger(__name__)

_LOAD_TIMEOUT_S = 600.0
_CLOSE_S = 3.0

OnLost = Callable[[GroupLost], None]


@dataclass(frozen=True)
class ExpertRanks:
    """How the experts are shared; by default they are all here."""

    size: int = 1
    """Processes that hold experts, this one included."""
    placement: Path | None = None
    """See `read_placements`; None = evenly."""
    timeout_s: float = 60.0
    """Longest wait for a rank that hangs; one that ends is noticed at once."""


class ModelSettings(Protocol):
    """What a service is told about the model it runs."""

    @property
    def model_dir(self) -> Path: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def kernels(self) -> str: ...
    @property
    def keeps_quantized(self) -> bool: ...
    @property
    def expert_ranks(self) -> int: ...
    @property
    def expert_placement(self) -> Path | None: ...


def open_served_model(
    settings: ModelSettings, on_lost: OnLost
) -> AbstractContextManager[CausalModel]:
    """open_model as a service's settings say."""
    return open_model(
        settings.model_dir,
        device=settings.device,
        dtype=settings.dtype,
        kernels=settings.kernels,
        keeps_quantized=settings.keeps_quantized,
        ranks=ExpertRanks(settings.expert_ranks, settings.expert_placement),
        on_lost=on_lost,
    )


@contextmanager
def open_model(
    model_dir: Path,
    *,
    device: str = "cpu",
    dtype: str = "bfloat16",
    kernels: str = "auto",
    keeps_quantized: bool = False,
    ranks: ExpertRanks = ExpertRanks(),
    on_lost: OnLost = lambda lost: None,
) -> Iterator[CausalModel]:
    """A loaded model, and its workers while the block runs.

    device: of this rank; on GPUs the next rank has the next one. kernels, keeps_quantized: see
    LoadOptions.
    on_lost: called from any thread, once, when a worker has ended or is too late: each step raises
    GroupLost from then on.
    Raises: what load_model raises; GroupLost, BadPlacement.
    """
    options = LoadOptions(kernels=KernelChoice.parse(kernels), keeps_quantized=keeps_quantized)
    if ranks.size == 1:
        yield load_model(model_dir, device=device, dtype=dtype, options=options)
        return
    devices = _devices_of(ranks.size, find_device(device))
    if not {V4_ARCHITECTURE, V41_ARCHITECTURE} & {*read_config(model_dir).get("architectures", [])}:
        raise UnsupportedModel(f"{model_dir} has no experts that ranks could share")
    tables = read_placements(ranks.placement) if ranks.placement else {}
    job = WorkerJob(
        model_dir=str(model_dir),
        device=devices[0],
        dtype=dtype,
        kernels=kernels,
        keeps_quantized=keeps_quantized,
        placement=str(ranks.placement) if ranks.placement else None,
        size=ranks.size,
        timeout_s=ranks.timeout_s,
    )
    with _joined(job, devices, on_lost) as (workers, exchange):
        options = replace(options, group=ExpertGroup(exchange, tables))
        model = load_model(model_dir, device=job.device, dtype=dtype, options=options)
        assert isinstance(model, DeepseekModel)
        workers.wait_until_ready(_LOAD_TIMEOUT_S)
        log.info("experts are shared", extra={"ranks": ranks.size, "pids": workers.pids})
        yield LeadingModel(model, workers)


@contextmanager
def _joined(
    job: WorkerJob, devices: Sequence[str], on_lost: OnLost
) -> Iterator[tuple[ExpertWorkers, ProcessExchange]]:
    """The workers, and this rank's way to them. job: but for the address. Raises: GroupLost."""
    _stay_on_this_machine()
    with tempfile.TemporaryDirectory(prefix="rorqual-ranks-") as directory, ExitStack() as stack:
        job = replace(job, address=f"file://{directory}/rendezvous")
        workers = ExpertWorkers(job, devices, on_lost)
        stack.callback(workers.close)
        device = torch.device(job.device)
        exchange = ProcessExchange(job.address, 0, job.size, device=device, timeout_s=job.timeout_s)
        stack.callback(exchange.close)
        yield workers, exchange


def _devices_of(size: int, first: torch.device) -> list[str]:
    """One for each rank. Raises: UnsupportedModel."""
    if first.type == "cpu":
        return ["cpu"] * size
    if first.type != "cuda":
        raise UnsupportedModel(f"experts are shared between CPUs or GPUs, not on {first}")
    numbers = [(first.index or 0) + rank for rank in range(size)]
    if numbers[-1] >= torch.cuda.device_count():
        raise UnsupportedModel(
            f"{size} ranks from cuda:{numbers[0]} on need as many GPUs; this machine has "
            f"{torch.cuda.device_count()}"
        )
    return [f"cuda:{number}" for number in numbers]


def _stay_on_this_machine() -> None:
    """The ranks talk over loopback, whatever the host's name resolves to."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


class LeadingModel(CausalModel):
    """A model of a group whose other ranks have no sequences: they step when this one does."""

    def __init__(self, model: DeepseekModel, workers: ExpertWorkers) -> None:
        self._model, self._workers = model, workers
        self._step = threading.Lock()
        self.fingerprint = model.fingerprint
        self.vocab_size = model.vocab_size
        self.eos_token_ids = model.eos_token_ids
        self.max_context_tokens = model.max_context_tokens
        self.kv_layout = model.kv_layout
        self.device, self.dtype = model.device, model.dtype
        self.num_previous_ids = model.num_previous_ids

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return self._workers.pids

    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor:
        """Raises: BadChunk, GroupLost."""
        with self._step:
            self._workers.begin_step()
            try:
                return self._model.forward(chunks, cache)
            except BadChunk:
                raise  # the group has made this step
            except GroupLost as lost:
                self._workers.lose(lost)
                raise
            except BaseException as err:
                self._workers.lose(self._workers.lost(f"rank 0 failed: {type(err).__name__}"))
                raise

    def num_replayed(self, num_stored: int) -> int:
        return self._model.num_replayed(num_stored)

    def save_window(self, cache: PagedKvCache, window: int, num_tokens: int) -> torch.Tensor:
        return self._model.save_window(cache, window, num_tokens)

    def load_window(
        self, cache: PagedKvCache, window: int, num_tokens: int, snapshot: torch.Tensor
    ) -> None:
        self._model.load_window(cache, window, num_tokens, snapshot)


class ExpertWorkers:
    """The processes of ranks 1 and up. They end with this object or with this process."""

    def __init__(self, job: WorkerJob, devices: Sequence[str], on_lost: OnLost) -> None:
        """job: what every worker is told, but for its rank and device; devices: by rank."""
        self._size, self._on_lost = job.size, on_lost
        self._changed = threading.Condition()
        self._num_ready = 0
        self._is_closing = False
        self._fault: GroupLost | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, job.size):
            process = _start(replace(job, rank=rank, device=devices[rank]))
            self._processes.append(process)
            watch = threading.Thread(
                target=self._watch, args=(rank, process), name=f"expert-rank-{rank}", daemon=True
            )
            watch.start()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Until every worker has loaded. Raises: GroupLost."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._fault, timeout_s)
            if self._fault is None and not self._is_ready:
                self._fault = self.lost(f"not every rank had loaded after {timeout_s:.0f} s")
            if self._fault is not None:
                raise self._fault

    @property
    def _is_ready(self) -> bool:
        return self._num_ready == self._size - 1

    def begin_step(self) -> None:
        """Wakes the workers for one step. Raises: GroupLost."""
        if self._fault is not None:
            raise self._fault
        for rank, process in enumerate(self._processes, 1):
            assert process.stdin is not None
            try:
                process.stdin.write(b"s")
            except OSError as err:
                lost = self.lost(f"rank {rank} has ended")
                self.lose(lost)
                raise lost from err

    def lost(self, reason: str) -> GroupLost:
        return GroupLost(0, self._size, "a step", 0.0, reason)

    def lose(self, lost: GroupLost) -> None:
        """The group is over; the first reason is told."""
        with self._changed:
            if self._fault is not None or self._is_closing:
                return
            self._fault = lost
            self._changed.notify_all()
        self._on_lost(lost)

    def close(self) -> None:
        """Ends the workers; one that is in a step gets little time for it."""
        with self._changed:
            self._is_closing = True
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            if said.readline():
                with self._changed:
                    self._num_ready += 1
                    self._changed.notify_all()
        code = process.wait()
        reason = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        self.lose(self.lost(f"rank {rank} has ended ({reason})"))


def _start(job: WorkerJob) -> subprocess.Popen[bytes]:
    """In a session of its own: signals for this process are not for its workers."""
    return subprocess.Popen(
        [sys.executable, "-m", "rorqual_engine.expert_worker", job.to_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
