"""A model whose experts are shared with processes of its own: this one leads the group."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from rorqual_policy.expert_placement import Cards
from rorqual_policy.expert_rebalance import plan_fetches

from rorqual_engine.batch import SequenceChunk
from rorqual_engine.errors import BadChunk, UnsupportedModel
from rorqual_engine.expert_balance import (
    DEFAULT_BALANCE,
    BalanceParams,
    OnDecision,
    not_told,
    watching,
)
from rorqual_engine.expert_processes import ExpertWorkers, OnLost
from rorqual_engine.expert_worker import STEP, WorkerJob, move_message
from rorqual_engine.kernels.registry import KernelChoice
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_engine.models.deepseek.config import V4_ARCHITECTURE, V41_ARCHITECTURE
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.deepseek.remote_experts import MoveFailed
from rorqual_engine.models.drafts import Anchor, Drafts, Sampler, greedy
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.models.registry import find_device, load_model, read_config
from rorqual_engine.parallel import ExpertPlacement, GroupLost, ProcessExchange
from rorqual_engine.parallel.compiled import compile_improve
from rorqual_engine.parallel.load import LayerLoad
from rorqual_engine.parallel.split import SplitBy

log = logging.getLogger(__name__)

_LOAD_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class ExpertRanks:
    """How the experts are shared; by default they are all here."""

    size: int = 1
    """Processes that hold experts, this one included."""
    placement: Path | None = None
    """See `read_placements`; None = evenly."""
    timeout_s: float = 60.0
    """Longest wait for a rank that hangs; one that ends is noticed at once."""
    num_redundant: int = 0
    """Experts of every rank beyond its share."""
    balance: BalanceParams = DEFAULT_BALANCE
    split: SplitBy = SplitBy.OWN
    """Of this process's rows; the others have none."""


SPLITS = {"counts": SplitBy.OWN, "recent": SplitBy.RECENT}
"""As settings name them."""


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
    def drafts(self) -> bool: ...
    @property
    def expert_ranks(self) -> int: ...
    @property
    def expert_placement(self) -> Path | None: ...
    @property
    def redundant_experts(self) -> int: ...
    @property
    def expert_nodes(self) -> int: ...
    @property
    def expert_interval_s(self) -> float: ...
    @property
    def expert_moves(self) -> int: ...
    @property
    def expert_split(self) -> str: ...


def open_served_model(
    settings: ModelSettings, on_lost: OnLost, on_decision: OnDecision = not_told
) -> AbstractContextManager[CausalModel]:
    """open_model as a service's settings say."""
    return open_model(
        settings.model_dir,
        device=settings.device,
        dtype=settings.dtype,
        kernels=settings.kernels,
        keeps_quantized=settings.keeps_quantized,
        ranks=ExpertRanks(
            settings.expert_ranks,
            settings.expert_placement,
            num_redundant=settings.redundant_experts,
            balance=BalanceParams(
                settings.expert_interval_s, settings.expert_moves, settings.expert_nodes
            ),
            split=SPLITS[settings.expert_split],
        ),
        drafts=settings.drafts,
        on_lost=on_lost,
        on_decision=on_decision,
    )


@contextmanager
def open_model(
    model_dir: Path,
    *,
    device: str = "cpu",
    dtype: str = "bfloat16",
    kernels: str = "auto",
    keeps_quantized: bool = False,
    drafts: bool = False,
    ranks: ExpertRanks = ExpertRanks(),
    on_lost: OnLost = lambda lost: None,
    on_decision: OnDecision = not_told,
) -> Iterator[CausalModel]:
    """A loaded model, and its workers while the block runs.

    device: of this rank; on GPUs the next rank has the next one. kernels, keeps_quantized,
    drafts: see LoadOptions.
    on_lost: called from any thread, once, when a worker has ended or is too late: each step raises
    GroupLost from then on. on_decision: called from a thread of its own.
    Raises: what load_model raises; GroupLost, BadPlacement.
    """
    options = LoadOptions(
        kernels=KernelChoice.parse(kernels), keeps_quantized=keeps_quantized, drafts=drafts
    )
    if ranks.size == 1:
        model = load_model(model_dir, device=device, dtype=dtype, options=options)
        with watching(model) if isinstance(model, DeepseekModel) else nullcontext():
            yield model
        return
    devices = _devices_of(ranks.size, find_device(device))
    if not {V4_ARCHITECTURE, V41_ARCHITECTURE} & {*read_config(model_dir).get("architectures", [])}:
        raise UnsupportedModel(f"{model_dir} has no experts that ranks could share")
    job = WorkerJob(
        model_dir=str(model_dir),
        device=devices[0],
        dtype=dtype,
        kernels=kernels,
        keeps_quantized=keeps_quantized,
        placement=str(ranks.placement) if ranks.placement else None,
        num_redundant=ranks.num_redundant,
        num_nodes=ranks.balance.num_nodes,
        split=ranks.split,
        size=ranks.size,
        timeout_s=ranks.timeout_s,
    )
    job.tables()  # a bad file is told of before anything starts
    with _joined(job, devices, on_lost) as (workers, exchange):
        options = replace(options, group=job.group(exchange))
        model = load_model(model_dir, device=job.device, dtype=dtype, options=options)
        assert isinstance(model, DeepseekModel)
        if ranks.balance.interval_s:
            compile_improve()
        workers.wait_until_ready(_LOAD_TIMEOUT_S)
        log.info("experts are shared", extra={"ranks": ranks.size, "pids": workers.pids})
        leading = LeadingModel(model, workers)
        with watching(leading, ranks.balance, leading.plan_tables, on_decision):
            yield leading


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
    """The ranks talk over loopback, whatever the host's name resolves to, unless these variables
    name an interface."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, loopback)


class LeadingModel(CausalModel):
    """A model of a group whose other ranks have no sequences: they step when this one does."""

    def __init__(self, model: DeepseekModel, workers: ExpertWorkers) -> None:
        self._model, self._workers = model, workers
        self.num_ranks = 1 + len(workers.pids)
        self._step = threading.Lock()
        self._planned: dict[int, Cards] = {}
        self.last_move_s = 0.0
        """What a step waited for the last layer that changed its table."""
        self.fingerprint = model.fingerprint
        self.vocab_size = model.vocab_size
        self.eos_token_ids = model.eos_token_ids
        self.max_context_tokens = model.max_context_tokens
        self.kv_layout = model.kv_layout
        self.device, self.dtype = model.device, model.dtype
        self.num_previous_ids, self.num_drafts = model.num_previous_ids, model.num_drafts

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return self._workers.pids

    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor:
        """Before it, one layer changes its table where that is planned. Raises: BadChunk,
        GroupLost."""
        with self._step:
            try:
                self._move_a_layer()
                self._workers.tell(STEP)
                return self._model.forward(chunks, cache)
            except BadChunk:
                raise  # the group has made this step
            except GroupLost as lost:
                self._workers.lose(lost)
                raise
            except BaseException as err:
                self._workers.lose(self._workers.lost(f"rank 0 failed: {type(err).__name__}"))
                raise

    def plan_tables(self, tables: Mapping[int, Cards]) -> None:
        """The next tables of some layers, by number: one layer changes before each of the next
        steps. Those that were planned before and have not come are forgotten.

        Raises: BadPlacement, ValueError; nothing is planned then.
        """
        present = self.expert_tables()
        for layer, table in tables.items():
            ExpertPlacement(len({e for held in present[layer] for e in held}), table)
            plan_fetches(present[layer], table)
        self._planned = dict(tables)

    def _move_a_layer(self) -> None:
        """Raises: GroupLost."""
        if not self._planned:
            return
        planned = self._planned
        layer = next(iter(planned))
        table = planned.pop(layer)
        self._workers.tell(move_message(layer, table))
        began_s = time.monotonic()
        try:
            self._model.move_experts(layer, table)
        except MoveFailed as err:
            log.warning("experts stay where they are", extra={"reason": str(err)})
            return
        self.last_move_s = time.monotonic() - began_s
        log.debug("experts moved", extra={"layer": layer, "took_s": round(self.last_move_s, 4)})

    def layer_loads(self) -> list[LayerLoad]:
        """See `DeepseekModel.layer_loads`; no other rank has rows."""
        return self._model.layer_loads()

    def expert_tables(self) -> list[Cards]:
        """By layer, which rank holds which experts."""
        return self._model.expert_tables()

    def draft(
        self, anchors: Sequence[Anchor], cache: PagedKvCache, sampler: Sampler = greedy
    ) -> Drafts:
        return self._model.draft(anchors, cache, sampler)  # no draft's experts are shared

    def num_replayed(self, num_stored: int) -> int:
        return self._model.num_replayed(num_stored)

    def save_window(self, cache: PagedKvCache, window: int, num_tokens: int) -> torch.Tensor:
        return self._model.save_window(cache, window, num_tokens)

    def load_window(
        self, cache: PagedKvCache, window: int, num_tokens: int, snapshot: torch.Tensor
    ) -> None:
        self._model.load_window(cache, window, num_tokens, snapshot)
