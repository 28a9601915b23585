"""Compute threads are found, bound and freed, and nothing else is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from rorqual_engine.placement import ComputeThreads

TASKS = Path("/proc/self/task")

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="threads are bound on Linux only"
)


def in_own_thread(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as executor:
        executor.submit(work).result()


def bound_cpus(threads: ComputeThreads) -> list[set[int]]:
    return [os.sched_getaffinity(thread_id) for thread_id in threads._thread_ids]


def use_all_cpus() -> bool:
    return torch.get_num_threads() == len(os.sched_getaffinity(0))


def test_spread_threads_have_a_cpu_each_and_get_all_back() -> None:
    if not use_all_cpus():
        pytest.skip("fewer compute threads than CPUs")
    everywhere = os.sched_getaffinity(0)

    def work() -> None:
        threads = ComputeThreads()
        assert threading.get_native_id() in threads._thread_ids
        assert len(set(threads._thread_ids)) == torch.get_num_threads()
        threads.spread(True)
        assert sorted(bound_cpus(threads), key=min) == [{cpu} for cpu in sorted(everywhere)]
        threads.spread(False)
        assert all(cpus == everywhere for cpus in bound_cpus(threads))

    in_own_thread(work)
    assert os.sched_getaffinity(0) == everywhere, "the test's own thread was never bound"


def test_products_start_no_threads_beside_those_that_were_found() -> None:
    def work() -> None:
        ComputeThreads()
        known = set(TASKS.iterdir())
        torch.randn(600, 600) @ torch.randn(600, 600)
        assert not set(TASKS.iterdir()) - known

    in_own_thread(work)


def test_fewer_threads_than_cpus_stay_free_to_move() -> None:
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("one CPU: there are no fewer threads than CPUs")

    def work() -> None:
        threads = ComputeThreads()
        threads._thread_ids = threads._thread_ids[:-1]
        threads.spread(True)
        assert not threads.are_spread
        assert all(cpus == os.sched_getaffinity(0) for cpus in bound_cpus(threads))

    in_own_thread(work)
