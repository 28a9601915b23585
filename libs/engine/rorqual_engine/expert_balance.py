"""Looks at a model's experts at intervals, and plans where they go next."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rorqual_policy.expert_moves import DEFAULT_MOVES
from rorqual_policy.expert_placement import Cards
from rorqual_policy.expert_rebalance import Rebalance, RebalanceParams, decide_rebalance

from rorqual_engine.errors import EngineError
from rorqual_engine.parallel.compiled import improve
from rorqual_engine.parallel.load import ExpertLoad, LayerLoad

log = logging.getLogger(__name__)

WINDOWS = 6
"""Looks in an interval."""
_RECENT, _OLDER = 3, 30
"""Windows. Source: scheduling bars 11 and 12, where the interval is 60 s."""
_CLOSE_S = 5.0

PlanTables = Callable[[Mapping[int, Cards]], None]
OnDecision = Callable[[str, tuple[Any, ...], Any], None]
"""Told the kind, the input and the outcome of every decision, for replay."""


def not_told(kind: str, given: tuple[Any, ...], decision: Any) -> None:
    """The `OnDecision` of who asks for nothing."""


@dataclass(frozen=True)
class BalanceParams:
    """How often experts change places, and how many."""

    interval_s: float = 60.0
    """Between two decisions; 0 = experts stay where they are."""
    max_changes: int = DEFAULT_MOVES.max_changes
    """Slots of a layer that get another expert in one interval."""
    num_nodes: int = 1
    """Groups of consecutive ranks that keep their experts to themselves."""


DEFAULT_BALANCE = BalanceParams()


class WatchedModel(Protocol):
    """A model whose experts are counted."""

    expert_loads: Sequence[ExpertLoad]

    def layer_loads(self) -> list[LayerLoad]: ...
    def expert_tables(self) -> list[Cards]: ...


class LoadHistory:
    """What layers were asked for in the last windows."""

    def __init__(self, loads: Sequence[LayerLoad]) -> None:
        """loads: since the start, as all that are given here."""
        self._last = list(loads)
        self._windows: deque[list[LayerLoad]] = deque(maxlen=_RECENT + _OLDER)

    def add(self, loads: Sequence[LayerLoad]) -> list[LayerLoad]:
        """Ends a window; what was asked for in it."""
        window = [now.since(then) for now, then in zip(loads, self._last, strict=True)]
        self._last = list(loads)
        self._windows.append(window)
        return window

    def samples(self, layer: int) -> list[list[float]]:
        """Rows by expert: recent ones, and where there are any, older ones."""
        counts = [window[layer].counts for window in self._windows]
        parts = counts[-_RECENT:], counts[:-_RECENT]
        return [sum(part[1:], start=part[0]).astype(float).tolist() for part in parts if part]


def decide_tables(
    history: LoadHistory, tables: Sequence[Cards], params: BalanceParams, on_decision: OnDecision
) -> list[Rebalance]:
    """By layer."""
    moves = DEFAULT_MOVES._replace(max_changes=params.max_changes)
    bounds = RebalanceParams(moves, params.num_nodes)
    found = []
    for layer, cards in enumerate(tables):
        samples = history.samples(layer)
        decision = decide_rebalance(samples, cards, bounds, improve)
        on_decision("experts", (samples, cards, bounds), decision)
        found.append(decision)
    return found


class ExpertWatch:
    """Ends windows, tells the model of them, and decides at every interval."""

    def __init__(
        self,
        model: WatchedModel,
        params: BalanceParams,
        plan: PlanTables | None,
        on_decision: OnDecision = not_told,
    ) -> None:
        self._model, self._params, self._plan = model, params, plan
        self._on_decision = on_decision
        self._history = LoadHistory(model.layer_loads())
        self._num_windows = 0

    def end_window(self) -> None:
        totals = self._model.layer_loads()
        window = self._history.add(totals)
        self._model.expert_loads = [
            ExpertLoad(total, recent) for total, recent in zip(totals, window, strict=True)
        ]
        self._num_windows += 1
        if self._plan is not None and self._num_windows % WINDOWS == 0:
            self._rebalance(self._plan)

    def _rebalance(self, plan: PlanTables) -> None:
        tables = self._model.expert_tables()
        decisions = decide_tables(self._history, tables, self._params, self._on_decision)
        plan({layer: d.cards for layer, d in enumerate(decisions) if d.num_changes})
        imbalance = max((load.recent.imbalance for load in self._model.expert_loads), default=0.0)
        log.info(
            "experts re-placed",
            extra={
                "num_slots": sum(decision.num_changes for decision in decisions),
                "reasons": dict(Counter(decision.reason for decision in decisions)),
                "worst_imbalance": round(imbalance, 3),
            },
        )


@contextmanager
def watching(
    model: WatchedModel,
    params: BalanceParams = DEFAULT_BALANCE,
    plan: PlanTables | None = None,
    on_decision: OnDecision = not_told,
) -> Iterator[None]:
    """A thread that watches while the block runs.

    plan: called from it with the layers' next tables; None = nobody moves experts.
    """
    ended = threading.Event()
    window_s = (params.interval_s or DEFAULT_BALANCE.interval_s) / WINDOWS
    watch = ExpertWatch(model, params, plan if params.interval_s else None, on_decision)

    def run() -> None:
        while not ended.wait(window_s):
            try:
                watch.end_window()
            except EngineError as err:
                log.warning("experts are not balanced", extra={"reason": str(err)})

    thread = threading.Thread(target=run, name="expert-balance", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_CLOSE_S)
