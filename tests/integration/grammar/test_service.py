"""Grammar as a process: compile, share, refuse, cancel, drain."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rorqual_engine.grammar import GrammarState, load_tokenizer_info
from rorqual_proto.v1 import generation_pb2, grammar_pb2, load_pb2, router_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.discovery import Instance
from rorqual_runtime.errors import Cancelled, InvalidRequest, ServingError
from rorqual_runtime.settings import RuntimeSettings
from rorqual_runtime.tensors import TensorPlane

from tests.support.bus import discovered
from tests.support.service_process import ServiceProcess, service_process
from tests.support.tiny_model_dir import EOS_TOKEN_ID, VOCAB_SIZE, make_model_dir, make_tokenizer
from tests.support.waiting import WAIT_S, soon, until

SLOW_REGEX = "((a{1,1000}){1,1000}){1,1000}(" + "|".join(f"b{i}.*" for i in range(3000)) + ")"


@dataclass
class Grammar:
    """The running service and a caller of it."""

    bus: Bus
    tensors: TensorPlane
    model_dir: Path
    process: ServiceProcess

    async def compile(
        self,
        kind: generation_pb2.ConstraintKind,
        source: str,
        request_id: str = "r1",
        param: str = "",
    ) -> grammar_pb2.Compiled:
        constraint = generation_pb2.Constraint(kind=kind, source=source, param=param)
        request = grammar_pb2.CompileRequest(request_id=request_id, constraint=constraint)
        reply = await self.bus.request(
            subjects.grammar_compile(), request, grammar_pb2.CompileReply, timeout_s=WAIT_S
        )
        return reply.compiled

    async def schema(self, schema: object) -> grammar_pb2.Compiled:
        return await self.compile(generation_pb2.CONSTRAINT_KIND_JSON_SCHEMA, json.dumps(schema))


@pytest.fixture
async def grammar(runtime_settings: RuntimeSettings, tmp_path: Path) -> AsyncIterator[Grammar]:
    model_dir = make_model_dir(tmp_path / "model")
    bus = await Bus.connect(runtime_settings, "test")
    plane = await TensorPlane.open(runtime_settings, "test-1", 1, runtime_settings.host_id)
    env = {
        "RORQUAL_MODEL_DIR": str(model_dir),
        "RORQUAL_SHM_BYTES": str(32 << 20),
        "RORQUAL_GRAMMAR_COMPILE_TIMEOUT_S": "600",
    }
    try:
        async with service_process(
            "grammar", bus, nats_url=runtime_settings.nats_url, home=tmp_path / "home", env=env
        ) as process:
            yield Grammar(bus, plane, model_dir, process)
    finally:
        await plane.close()
        await bus.close()


def accepts(state: GrammarState, text: str) -> bool:
    """Whether every token of the text and then the end token is allowed."""
    token_ids = make_tokenizer().encode(text).ids
    return all(state.accept(token_id) for token_id in [*token_ids, EOS_TOKEN_ID])


async def test_the_engine_can_use_what_the_service_compiled(grammar: Grammar) -> None:
    compiled = await grammar.schema(
        {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    )
    data = bytes(await grammar.tensors.fetch(compiled.grammar))
    tokenizer = load_tokenizer_info(grammar.model_dir, VOCAB_SIZE, [EOS_TOKEN_ID])
    assert accepts(GrammarState.from_serialized(data, tokenizer), '{"ok": true}')
    assert not accepts(GrammarState.from_serialized(data, tokenizer), '{"ok": 1}')


async def test_equal_constraints_share_one_grammar_that_stays_readable(grammar: Grammar) -> None:
    first = await grammar.schema({"const": "a"})
    second = await grammar.schema({"const": "a"})
    assert not first.cache_hit
    assert second.cache_hit
    assert (first.grammar.slot, first.grammar.generation) == (
        second.grammar.slot,
        second.grammar.generation,
    )
    assert second.grammar.expires_unix_s > time.time() + 600
    assert (await grammar.tensors.fetch(first.grammar)).nbytes == first.grammar.size_bytes


@pytest.mark.parametrize(
    ("kind", "source", "says"),
    [
        (generation_pb2.CONSTRAINT_KIND_JSON_SCHEMA, '{"type": "nonsense"}', "Unsupported type"),
        (generation_pb2.CONSTRAINT_KIND_JSON_SCHEMA, "", "empty"),
        (generation_pb2.CONSTRAINT_KIND_REGEX, "(" * 270_000, "exceeds the limit of 262144"),
        (generation_pb2.CONSTRAINT_KIND_UNSPECIFIED, "x", "unknown kind"),
    ],
)
async def test_a_bad_constraint_is_answered_as_invalid(
    grammar: Grammar, kind: generation_pb2.ConstraintKind, source: str, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        await grammar.compile(kind, source)
    assert caught.value.param


async def test_an_error_names_the_field_of_each_caller(grammar: Grammar) -> None:
    """Also of the second one, whose answer is remembered."""
    kind = generation_pb2.CONSTRAINT_KIND_JSON_SCHEMA
    for param in ("text.format.schema", "response_format.json_schema.schema"):
        with pytest.raises(ServingError) as caught:
            await grammar.compile(kind, '{"not": {}}', param=param)
        assert caught.value.param == param
    tag = {"type": "json_schema", "json_schema": {"not": {}}, "param": "tools[3].input_schema"}
    source = json.dumps({"type": "structural_tag", "format": tag})
    with pytest.raises(ServingError, match="'not'") as caught:
        await grammar.compile(generation_pb2.CONSTRAINT_KIND_STRUCTURAL_TAG, source, param="tools")
    assert caught.value.param == "tools[3].input_schema"


async def test_cancel_ends_a_compilation_and_leaves_nothing_active(grammar: Grammar) -> None:
    slow = asyncio.create_task(
        grammar.compile(generation_pb2.CONSTRAINT_KIND_REGEX, SLOW_REGEX, "slow")
    )
    await asyncio.sleep(0.3)
    await grammar.bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="slow"))
    with pytest.raises(ServingError) as caught:
        await soon(slow)
    assert isinstance(caught.value, Cancelled)

    def is_idle(found: list[Instance]) -> bool:
        loads = [instance.load for instance in found]
        return len(loads) == 1 and loads[0] is not None and not _held(loads[0])

    await discovered(grammar.bus, is_idle)


def _held(load: load_pb2.LoadReport) -> int:
    return load.num_active_requests + load.num_held_leases


async def test_every_choice_of_a_cancelled_request_is_let_go_of(grammar: Grammar) -> None:
    kind = generation_pb2.CONSTRAINT_KIND_REGEX
    choices = [asyncio.create_task(grammar.compile(kind, SLOW_REGEX, "two")) for _ in range(2)]
    await asyncio.sleep(0.3)
    await grammar.bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="two"))
    errors = await soon(asyncio.gather(*choices, return_exceptions=True))
    assert [type(error) for error in errors] == [Cancelled, Cancelled]


async def test_a_choice_that_ends_leaves_the_grammar_to_the_others(grammar: Grammar) -> None:
    request = router_pb2.CancelRequest(request_id="r1", choice_index=0)
    await grammar.bus.publish(subjects.cancel(), request)
    assert (await grammar.schema({"const": "a"})).grammar.size_bytes > 0


async def test_it_drains_and_leaves_no_process_behind(grammar: Grammar) -> None:
    pid = grammar.process.instance.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(children) == 1
    assert await grammar.process.stop() == 0
    await until(lambda: not Path(f"/proc/{children[0]}").exists())
