"""What is lost, wrong, leaked or late is counted, and nothing else."""

from __future__ import annotations

from rorqual_cli.chaos.answers import Answer
from rorqual_cli.chaos.plan import Fault, Kind
from rorqual_cli.chaos.table import Row, render_table
from rorqual_cli.chaos.verdict import Asked, Verdict, Window, judge, stalls_in

RIGHT = Answer({"content": "Hello"}, "stop", 2)
OTHER = Answer({"content": "Hellooo"}, "stop", 3)


def _asked(*pieces_s: float, ended_s: float = 10.0, answer: Answer | None = RIGHT) -> Asked:
    return Asked(0, 0.0, pieces_s=list(pieces_s), ended_s=ended_s, answer=answer)


def test_lost_and_wrong_answers_are_told_apart() -> None:
    asked = [_asked(), _asked(answer=OTHER), _asked(answer=None)]
    verdict = judge(asked, {0: RIGHT}, [], num_leaked=0)
    assert (verdict.requests, verdict.wrong, verdict.lost) == (3, 1, 1)
    assert not verdict.is_good
    assert judge(asked[:1], {0: RIGHT}, [], num_leaked=0).is_good
    assert not judge(asked[:1], {0: RIGHT}, [], num_leaked=1).is_good


def test_a_stall_is_the_longest_wait_of_a_stream_that_was_under_way() -> None:
    window = Window(4.0, 8.0)
    assert stalls_in([_asked(1.0, 3.5, 6.0, 7.0, ended_s=7.5)], window) == [2.5]
    assert stalls_in([_asked(1.0, 2.0, ended_s=9.5)], window) == [7.5]  # nothing came any more


def test_streams_of_other_times_have_no_stall() -> None:
    window = Window(4.0, 8.0)
    not_begun, over, slow_later = (
        _asked(5.0, 9.0),
        _asked(1.0, 3.0, ended_s=3.0),
        _asked(3.9, 4.1, 8.1, 20.0, ended_s=20.0),
    )
    assert stalls_in([not_begun, over], window) == []
    assert stalls_in([slow_later], window) == [4.0]


def test_worst_and_middle_are_over_all_faults() -> None:
    asked = [_asked(0.0, 2.0, 9.9), _asked(0.0, 1.5, 2.5, 9.9), _asked(0.0, 9.9)]
    verdict = judge(asked, {0: RIGHT}, [Window(1.0, 3.0)], num_leaked=0)
    assert (verdict.worst_stall_s, verdict.p50_stall_s) == (9.9, 7.9)


def test_the_page_has_a_line_for_each_fault() -> None:
    fault = Fault(Kind.KILL, "decode-1")
    row = Row(fault, Verdict(40, 1, 2, 3, 4, 2.25, 0.5), back_s=6.04, load1=9.4)
    page = render_table([row], num_clients=32, num_cores=2)
    assert page.endswith("| decode-1: kill -9 | 40 | 1 | 2 | 3 | 4 | 0.5 s | 2.2 s | 6.0 s | 9 |\n")


def test_rows_of_other_faults_stay() -> None:
    verdict = Verdict(40, 0, 0, 0, 0, 2.0, 0.5)
    decode, router = (
        Row(Fault(Kind.KILL, target), verdict, 1.0, 2.0) for target in ("decode-1", "router-1")
    )
    first = render_table([router], num_clients=32, num_cores=2)
    both = render_table([decode], num_clients=32, num_cores=2, earlier=first)
    assert both == render_table([router, decode], num_clients=32, num_cores=2)
    assert both == render_table([router], num_clients=32, num_cores=2, earlier=both)


def test_the_page_names_what_is_over_a_goal() -> None:
    rows = [
        Row(Fault(Kind.KILL, target), Verdict(40, 0, 0, 0, 0, worst_s, p50_s), 1.0, 2.0)
        for target, p50_s, worst_s in (
            *(("decode-1", 1.1, 2.0), ("router-1", 1.0, 5.0)),
            ("recipe-1", 0.1, 5.1),
        )
    ]
    page = render_table(rows, num_clients=32, num_cores=2)
    assert "over one of them: `decode-1: kill -9`; `recipe-1: kill -9`." in page
    assert "over one of them" not in render_table(rows[1:2], num_clients=32, num_cores=2)
