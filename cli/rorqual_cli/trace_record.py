"""Live requests as a trace that `rorqual replay` reads: times, token counts and which prompts begin
alike. No content, and no hash of it: blocks and tenants get numbers in order of appearance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rorqual_policy.blocks import BLOCK_TOKENS, KEY_BYTES
from rorqual_proto.v1 import decode_pb2, kvmeta_pb2, router_pb2

MAX_OPEN = 100_000
"""Requests under way that are known; of more the oldest are forgotten."""
MAX_BLOCKS = 2_000_000
"""Blocks told apart; then numbering begins anew, and what was before counts as different."""

Row = dict[str, Any]


@dataclass
class _Open:
    """A request that has not ended."""

    at_s: float
    input_tokens: int
    tenant: int
    outputs: dict[int, int]
    """Tokens so far of each choice that goes on."""
    blocks: list[int] = field(default_factory=list)


class TraceRecorder:
    """Puts together what the services say to each other about a request."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._blocks: dict[bytes, int] = {}
        self._next_block = 0
        self._tenants: dict[str, int] = {}
        self.num_written = 0

    @property
    def num_open(self) -> int:
        """Requests under way."""
        return len(self._open)

    def on_submit(self, message: router_pb2.SubmitRequest, at_s: float) -> None:
        """A request came in, with one choice or more; said twice it counts once."""
        if not message.generations:
            return
        first = message.generations[0]
        tenant = self._tenants.setdefault(first.tenant, len(self._tenants))
        outputs = {generation.choice_index: 0 for generation in message.generations}
        request = _Open(at_s, first.num_prompt_tokens, tenant, outputs)
        self._open.setdefault(first.request_id, request)
        if len(self._open) > MAX_OPEN:
            del self._open[next(iter(self._open))]

    def on_match(self, message: kvmeta_pb2.MatchRequest) -> None:
        """The blocks of a prompt."""
        request = self._open.get(message.request_id)
        if request is None:
            return
        packed = message.packed_block_keys
        keys = (packed[i : i + KEY_BYTES] for i in range(0, len(packed), KEY_BYTES))
        request.blocks = [self._number(key) for key in keys]

    def _number(self, key: bytes) -> int:
        if len(self._blocks) >= MAX_BLOCKS:
            self._blocks.clear()
        number = self._blocks.setdefault(key, self._next_block)
        self._next_block += number == self._next_block
        return number

    def on_tokens(self, message: decode_pb2.TokenBatch) -> Iterable[Row]:
        """Rows of the requests that ended with this batch; one that failed leaves no row."""
        for delta in message.deltas:
            request = self._open.get(delta.request_id)
            if request is None or delta.choice_index not in request.outputs:
                continue
            end = delta.seq + len(delta.token_ids)
            num_tokens = max(request.outputs[delta.choice_index], end)
            request.outputs[delta.choice_index] = num_tokens
            if not delta.HasField("error") and not delta.finish_reason:
                continue
            del request.outputs[delta.choice_index]
            if not request.outputs:
                del self._open[delta.request_id]
            if not delta.HasField("error"):
                self.num_written += 1
                yield _row(request, num_tokens)


def _row(request: _Open, output_tokens: int) -> Row:
    return {
        "timestamp": round(request.at_s * 1e3, 3),
        "input_length": request.input_tokens,
        "output_length": output_tokens,
        "hash_ids": request.blocks,
        "block_tokens": BLOCK_TOKENS,
        "tenant": request.tenant,
    }
