"""The engine thread: every token once, short prompts beside long ones, nothing touched later."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import torch
from rorqual_engine.kv import KvLayout, PagedKvCache, uniform_layout
from rorqual_engine.models import CausalModel
from rorqual_policy.step_cost import StepCost
from rorqual_prefill.compute import PrefillEngine
from rorqual_prefill.job import num_reusable_blocks
from rorqual_prefill.prompt import Prompt
from rorqual_runtime.errors import Internal

from tests.support.waiting import WAIT_S, until


class CountingModel(CausalModel):
    """Logits [last token, length]; records the (start, number) of every chunk by first page."""

    def __init__(self) -> None:
        self.kv_layout: KvLayout = uniform_layout(1, 4)
        self.steps: list[list[tuple[int, int, int]]] = []
        self.num_begun = 0
        self.gate = threading.Event()
        self.gate.set()
        self.fails_with: int | None = None

    def forward(self, chunks, cache):
        self.num_begun += 1
        assert self.gate.wait(WAIT_S)
        step = [(chunk.pages[0], chunk.start, len(chunk.token_ids)) for chunk in chunks]
        self.steps.append(step)
        if any(number == self.fails_with for _, _, number in step):
            raise RuntimeError("broken")
        rows = [
            [float(chunk.token_ids[-1]), float(chunk.start + len(chunk.token_ids))]
            for chunk in chunks
            if chunk.wants_logits
        ]
        return torch.tensor(rows, dtype=torch.float32).reshape(-1, 2)


@pytest.fixture
def model():
    return CountingModel()


@pytest.fixture
async def engine(model):
    engine = PrefillEngine(
        model,
        PagedKvCache(model.kv_layout, 64),
        step_tokens=512,
        step_limit_s=100.0,
        cost=StepCost(20.0, 1e-3, 0.0, 0.0),
    )
    engine.start()
    yield engine
    model.gate.set()
    await engine.close()


def make_prompt(name: str, num_tokens: int, first_page: int, num_done: int = 0) -> Prompt:
    loop = asyncio.get_running_loop()
    return Prompt(
        prompt_id=name,
        token_ids=np.arange(num_tokens, dtype=np.int32),
        pages=list(range(first_page, first_page + -(-num_tokens // 128))),
        num_done=num_done,
        arrival_s=0.0,
        on_page=[].append,
        on_progress=lambda num_remaining: None,
        last_chunk_started=loop.create_future(),
        logits=loop.create_future(),
        exported=loop.create_future(),
    )


async def compute(engine, prompt) -> list[float]:
    async with engine.computing(prompt):
        logits = (await asyncio.wait_for(prompt.logits, 30)).tolist()
        await asyncio.wait_for(prompt.exported, 30)
        return logits


async def test_a_prompt_is_computed_in_chunks_and_its_pages_told_in_order(engine, model):
    prompt = make_prompt("p", 1100, 0, num_done=256)
    done: list[int] = []
    prompt.on_page = done.append
    assert await compute(engine, prompt) == [1099.0, 1100.0]
    assert [step[0][1:] for step in model.steps] == [(256, 512), (768, 332)]
    assert done == list(range(2, 9))
    assert prompt.last_chunk_started.done()
    assert engine.num_computed_tokens == 1100 - 256


async def test_a_short_prompt_does_not_wait_for_a_long_one(engine, model):
    model.gate.clear()
    long = asyncio.create_task(compute(engine, make_prompt("long", 5000, 0)))
    await until(lambda: model.num_begun)
    short = asyncio.create_task(compute(engine, make_prompt("short", 30, 50)))
    await asyncio.sleep(0.02)
    model.gate.set()
    assert await short == [29.0, 30.0]
    assert await long == [4999.0, 5000.0]
    number = next(i for i, step in enumerate(model.steps) if any(c[0] == 50 for c in step))
    assert number == 1, "the short prompt was not in the first step after its arrival"


async def test_what_is_left_of_a_step_is_expected_while_it_runs_and_nothing_after_it(engine, model):
    model.gate.clear()
    computing = asyncio.create_task(compute(engine, make_prompt("p", 100, 0)))
    await until(lambda: model.num_begun)
    first_s = engine.step_left_s()
    assert 0 < first_s <= 20.1
    await asyncio.sleep(0.02)
    assert engine.step_left_s() < first_s
    model.gate.set()
    await computing
    await until(lambda: engine.step_left_s() == 0.0)


async def test_after_withdrawal_the_engine_touches_nothing(engine, model):
    model.gate.clear()
    prompt = make_prompt("p", 5000, 0)
    done: list[int] = []
    prompt.on_page = done.append
    computing = asyncio.create_task(compute(engine, prompt))
    await until(lambda: model.num_begun)
    computing.cancel()
    await asyncio.sleep(0.02)
    assert not computing.done(), "left while the step was running"
    model.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await computing
    num_steps = len(model.steps)
    await asyncio.sleep(0.05)
    assert (len(model.steps), done) == (num_steps, [])


async def test_a_failed_step_fails_its_prompts_and_the_engine_goes_on(engine, model):
    model.fails_with = 77
    with pytest.raises(Internal):
        await compute(engine, make_prompt("bad", 77, 0))
    assert await compute(engine, make_prompt("good", 30, 5)) == [29.0, 30.0]


async def test_a_step_that_cannot_be_planned_fails_who_waits_instead_of_trying_for_ever(model):
    def waiting():
        raise ZeroDivisionError

    cache = PagedKvCache(model.kv_layout, 64)
    engine = PrefillEngine(model, cache, step_tokens=512, step_limit_s=1.0, waiting=waiting)
    engine.start()
    try:
        with pytest.raises(Internal):
            await compute(engine, make_prompt("p", 30, 0))
    finally:
        await engine.close()


async def test_step_costs_follow_the_steps(model):
    calibrated = StepCost(10.0, 1.0, 0.0, 0.0)
    cache = PagedKvCache(model.kv_layout, 64)
    engine = PrefillEngine(model, cache, step_tokens=512, step_limit_s=100.0, cost=calibrated)
    engine.start()
    try:
        for number in range(30):
            await compute(engine, make_prompt(str(number), 100, 0))
        assert engine.cost.a1_s < calibrated.a1_s / 2
    finally:
        await engine.close()


async def test_a_step_is_short_under_a_light_load_and_fills_its_limit_when_work_waits(model):
    waiting = [0.0]
    engine = PrefillEngine(
        model,
        PagedKvCache(model.kv_layout, 64),
        step_tokens=4096,
        step_limit_s=1.0,
        cost=StepCost(0.05, 1e-3, 0.0, 0.0),
        waiting=lambda: (waiting[0], 1),
    )
    model.gate.clear()
    engine.start()
    try:
        computing = asyncio.create_task(compute(engine, make_prompt("p", 5000, 0)))
        await until(lambda: model.num_begun)
        waiting[0] = 1e9
        model.gate.set()
        await computing
        (first,), (second,) = model.steps[:2]
        assert first[2] == 128  # whole blocks of 6 a0
        assert second[2] >= 896  # of 1 s, or of more as the steps turn out to be faster
    finally:
        await engine.close()


async def test_pages_are_told_once_and_whole_where_steps_end_within_blocks(model):
    cost = StepCost(10.0, 1.0, 0.0, 0.0)
    cache = PagedKvCache(model.kv_layout, 64)
    engine = PrefillEngine(model, cache, step_tokens=512, step_limit_s=50.0, cost=cost)
    prompt = make_prompt("p", 300, 0)
    done: list[tuple[int, int]] = []
    prompt.on_page = lambda index: done.append((index, prompt.num_done))
    engine.start()
    try:
        assert await compute(engine, prompt) == [299.0, 300.0]
    finally:
        await engine.close()
    assert model.steps[0][0][1:] == (0, 40)  # tokens of 1 s each
    assert [index for index, _ in done] == [0, 1, 2]
    assert all(num_done >= min(300, 128 * (index + 1)) for index, num_done in done)


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(1, 0), (128, 0), (129, 1), (256, 1), (257, 2), (2000, 15)]
)
def test_one_token_at_least_is_computed(num_tokens, expected):
    assert num_reusable_blocks(num_tokens) == expected


async def test_logits_come_before_the_pages_are_copied(engine):
    prompt = make_prompt("p", 100, 0)
    may_copy = threading.Event()
    prompt.on_page = lambda index: may_copy.wait(30)
    async with engine.computing(prompt):
        try:
            await asyncio.wait_for(prompt.logits, 30)
            assert not prompt.exported.done()
        finally:
            may_copy.set()
        await asyncio.wait_for(prompt.exported, 30)


async def test_pages_that_cannot_be_copied_fail_the_prompt_that_has_its_logits(engine):
    prompt, failed = make_prompt("p", 100, 0), OSError("no room")

    def fail(index: int) -> None:
        raise failed

    prompt.on_page = fail
    async with engine.computing(prompt):
        await asyncio.wait_for(prompt.logits, 30)
        with pytest.raises(Internal, match="OSError"):
            await asyncio.wait_for(prompt.exported, 30)
    assert await compute(engine, make_prompt("q", 100, 1)) == [99.0, 100.0]
