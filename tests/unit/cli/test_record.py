"""A recorded trace: what replay needs, nothing of what was said."""

from __future__ import annotations

import json
from pathlib import Path

from rorqual_cli.trace_record import TraceRecorder
from rorqual_proto.v1 import decode_pb2, error_pb2, generation_pb2, kvmeta_pb2, router_pb2
from rorqual_sim.traces import read_trace


def _submit(request_id: str, num_tokens: int, *, choices: int = 1, tenant: str = "alice"):
    return router_pb2.SubmitRequest(
        generations=[
            generation_pb2.Generation(
                request_id=request_id,
                choice_index=index,
                num_prompt_tokens=num_tokens,
                tenant=tenant,
            )
            for index in range(choices)
        ]
    )


def _tokens(request_id: str, seq: int, num: int, *, choice: int = 0, finish: int = 0):
    delta = decode_pb2.TokenDelta(
        request_id=request_id,
        choice_index=choice,
        seq=seq,
        token_ids=[7] * num,
        finish_reason=finish,
    )
    return decode_pb2.TokenBatch(deltas=[delta])


def _match(request_id: str, *blocks: bytes):
    return kvmeta_pb2.MatchRequest(
        request_id=request_id, packed_block_keys=b"".join(b * 16 for b in blocks)
    )


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    recorder = TraceRecorder()
    rows = []
    for name, at_s, num_tokens, blocks in (
        ("a", 1.0, 300, (b"x", b"y")),
        ("b", 1.5, 310, (b"x", b"z")),
    ):
        recorder.on_submit(_submit(name, num_tokens), at_s)
        recorder.on_submit(_submit(name, num_tokens), at_s + 1)  # asked again
        recorder.on_match(_match(name, *blocks))
        rows += recorder.on_tokens(_tokens(name, 0, 1))
        rows += recorder.on_tokens(_tokens(name, 0, 1))  # the first token, said by both engines
    rows += recorder.on_tokens(_tokens("b", 1, 4, finish=decode_pb2.FINISH_REASON_STOP))
    rows += recorder.on_tokens(_tokens("a", 1, 2, finish=decode_pb2.FINISH_REASON_LENGTH))
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(path)
    assert trace.arrival_s.tolist() == [0.0, 0.5]
    assert trace.input_tokens.tolist() == [300, 310]
    assert trace.output_tokens.tolist() == [3, 5]
    assert trace.block_ids.tolist() == [0, 1, 0, 2] and trace.block_tokens == 128
    assert "alice" not in path.read_text() and (b"x" * 16).hex() not in path.read_text()


def test_each_choice_is_a_row_and_one_that_failed_is_none() -> None:
    recorder = TraceRecorder()
    recorder.on_submit(_submit("a", 50, choices=2), 0.0)
    failed = _tokens("a", 0, 1, choice=0)
    failed.deltas[0].error.CopyFrom(error_pb2.ErrorInfo(message="gone"))
    assert not list(recorder.on_tokens(failed))
    last = _tokens("a", 0, 6, choice=1, finish=decode_pb2.FINISH_REASON_STOP)
    assert [row["output_length"] for row in recorder.on_tokens(last)] == [6]
    assert recorder.num_open == 0 and recorder.num_written == 1
    assert not list(recorder.on_tokens(last)), "it had ended"
