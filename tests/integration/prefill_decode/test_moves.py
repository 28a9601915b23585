"""A running generation goes on at another instance as if nothing had happened."""

from __future__ import annotations

import asyncio
from typing import Any

import xgrammar
from rorqual_engine.grammar import load_tokenizer_info
from rorqual_engine.models import CausalModel, load_model
from rorqual_engine.runner import BareEngine, GenerationParams
from rorqual_proto.v1 import decode_pb2, error_pb2
from rorqual_runtime import subjects

from tests.integration.prefill_decode.conftest import prompt
from tests.integration.prefill_decode.fleet import Fleet, Received, SlowModel, running_fleet
from tests.support.model import random_v41_dir
from tests.support.waiting import WAIT_S, soon, until

NUM_TOKENS = 60
SCHEMA = '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}'
RULES = {"frequency_penalty": 0.6, "presence_penalty": 0.2, "repetition_penalty": 1.2}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"ignore_eos": True},
    "sampled": {"ignore_eos": True, "temperature": 0.9, "top_p": 0.9},
    "rules and scores": {
        **RULES,
        "ignore_eos": True,
        "temperature": 0.5,
        "min_new_tokens": 50,
        "logprobs": True,
        "top_logprobs": 3,
    },
    "grammar": {"temperature": 1.0, **RULES},
}
NO_GRACE = {"drain_grace_s": 0.0, "drafter": "ngram", "guess_schedule": "fixed"}


async def _ticket(fleet: Fleet, tiny_dir, model: CausalModel) -> Any:
    vocabulary = load_tokenizer_info(tiny_dir, model.vocab_size, model.eos_token_ids)
    compiled = xgrammar.GrammarCompiler(vocabulary).compile_json_schema(SCHEMA)
    data = compiled.serialize_json().encode()
    return await fleet.prefill[0][0].tensors.publish(data, lease_s=60.0)


async def _submit_all(fleet: Fleet, name: str, grammar: Any) -> dict[str, Received]:
    """One generation of each kind, its prompt of a length of its own."""
    for number, (kind, options) in enumerate(KINDS.items()):
        await fleet.around.submit(
            f"{name} {kind}",
            prompt(100 + 60 * number),
            max_new_tokens=NUM_TOKENS,
            compiled_grammar=grammar if kind == "grammar" else None,
            **options,
        )
    return {kind: fleet.around.output(f"{name} {kind}") for kind in KINDS}


async def _finished(outputs: dict[str, Received]) -> None:
    await until(lambda: all(o.finish_reason for o in outputs.values()), "all to finish")


def _said(output: Received) -> Any:
    scores = [(s.token_id, s.logprob, list(s.top_ids)) for s in output.logprobs]
    return output.token_ids, scores, output.finish_reason, output.error_code


async def test_a_draining_decode_moves_what_runs(runtime_settings, tiny_model, tiny_dir):
    """Into the middle of blocks and masks, with guesses on."""
    model = SlowModel(tiny_model, 0.0)
    async with running_fleet(
        runtime_settings, model, tiny_dir, num_decode=2, decode=NO_GRACE
    ) as fleet:
        grammar = await _ticket(fleet, tiny_dir, tiny_model)
        calm = await _submit_all(fleet, "calm", grammar)
        await _finished(calm)
        model.step_s = 0.03
        moved = await _submit_all(fleet, "moved", grammar)
        await until(lambda: all(len(o.token_ids) > 4 for o in moved.values()), "tokens of all")
        await soon(fleet.decode[0][1].drain(60.0))
        assert not any(o.finish_reason for o in moved.values()), "they ended before they could move"
        model.step_s = 0.0
        await _finished(moved)
        for kind, output in moved.items():
            assert _said(output) == _said(calm[kind]), kind
            assert (output.decode_ids, output.runs) == ({"decode-0", "decode-1"}, [0, 1]), kind
            assert not output.has_gap and not output.num_repeated, kind
        fleet.prefill[0][0].tensors.release(grammar)
        await fleet.nothing_held()


async def test_windows_move_too(runtime_settings):
    bare = BareEngine(load_model(random_v41_dir()), num_pages=32)
    expected = bare.generate([prompt(300)], GenerationParams(NUM_TOKENS, ignore_eos=True))[0]
    model = SlowModel(load_model(random_v41_dir()), 0.03)
    async with running_fleet(
        runtime_settings, model, random_v41_dir(), num_decode=2, decode={"drain_grace_s": 0.0}
    ) as fleet:
        await fleet.around.submit("r", prompt(300), max_new_tokens=NUM_TOKENS, ignore_eos=True)
        output = fleet.around.output("r")
        await until(lambda: len(output.token_ids) > 4, "tokens to come")
        await soon(fleet.decode[0][1].drain(60.0))
        assert (await fleet.around.finished("r")).token_ids == expected
        assert output.decode_ids == {"decode-0", "decode-1"}
        await fleet.nothing_held()


async def test_a_target_that_dies_is_replaced(runtime_settings, tiny_model, tiny_dir, bare):
    model = SlowModel(tiny_model, 0.03)
    async with running_fleet(
        runtime_settings, model, tiny_dir, num_decode=2, decode=NO_GRACE
    ) as fleet:
        fleet.around.decode_ids = ["decode-0", "decode-gone", "decode-1"]
        await fleet.around.submit("r", prompt(50), max_new_tokens=NUM_TOKENS, ignore_eos=True)
        output = fleet.around.output("r")
        await until(lambda: len(output.token_ids) > 4, "tokens to come")
        await soon(fleet.decode[0][1].drain(60.0))
        assert (await fleet.around.finished("r")).token_ids == bare(prompt(50), NUM_TOKENS)
        assert output.runs == [0, 2], "each offer has a number of its own"
        await fleet.nothing_held()


async def test_what_nobody_takes_runs_on(runtime_settings, tiny_model, tiny_dir, bare):
    model = SlowModel(tiny_model, 0.03)
    async with running_fleet(runtime_settings, model, tiny_dir, decode=NO_GRACE) as fleet:
        fleet.around.decode_ids = ["decode-0", "decode-gone"]
        await fleet.around.submit("r", prompt(50), max_new_tokens=40, ignore_eos=True)
        await fleet.around.submit("long", prompt(60), max_new_tokens=3000, ignore_eos=True)
        await until(lambda: len(fleet.around.output("long").token_ids) > 4, "tokens to come")
        draining = asyncio.create_task(fleet.decode[0][1].drain(600.0))
        assert (await fleet.around.finished("r")).token_ids == bare(prompt(50), 40)
        await until(lambda: fleet.around.output("long").runs[-1] > 1, "more than one try")
        await fleet.around.cancel("long")
        await soon(draining)
        await fleet.nothing_held()


async def test_what_nobody_has_taken_at_the_end_is_given_up(runtime_settings, tiny_model, tiny_dir):
    """Its reader has it go on elsewhere."""
    model = SlowModel(tiny_model, 0.03)
    async with running_fleet(runtime_settings, model, tiny_dir, decode=NO_GRACE) as fleet:
        await fleet.around.submit("r", prompt(50), max_new_tokens=3000, ignore_eos=True)
        await until(lambda: len(fleet.around.output("r").token_ids) > 4, "tokens to come")
        await soon(fleet.decode[0][1].drain(1.0))
        failed = await fleet.around.finished("r")
        assert failed.error_code == error_pb2.ERROR_CODE_UNAVAILABLE
        await fleet.nothing_held()


async def _hanging(fleet: Fleet, name: str) -> asyncio.Event:
    """An instance that never answers an offer; set once it has one."""
    asked = asyncio.Event()

    async def hang(_request, _context):
        asked.set()
        await asyncio.sleep(600)

    await fleet.around.bus.serve(
        subjects.decode_handover(name),
        decode_pb2.HandoverRequest,
        decode_pb2.HandoverReply,
        hang,
        name="hang",
    )
    return asked


async def test_a_cancel_during_a_move_frees_everything(runtime_settings, tiny_model, tiny_dir):
    model = SlowModel(tiny_model, 0.03)
    async with running_fleet(runtime_settings, model, tiny_dir, decode=NO_GRACE) as fleet:
        asked = await _hanging(fleet, "decode-hangs")
        fleet.around.decode_ids = ["decode-0", "decode-hangs"]
        await fleet.around.submit("r", prompt(50), max_new_tokens=3000, ignore_eos=True)
        await until(lambda: len(fleet.around.output("r").token_ids) > 4, "tokens to come")
        draining = asyncio.create_task(fleet.decode[0][1].drain(60.0))
        await soon(asked.wait())
        await fleet.around.cancel("r")
        await soon(draining)
        await fleet.nothing_held()


async def test_a_lost_generation_goes_on_behind_its_tokens(runtime_settings, tiny_model, tiny_dir):
    """As recipe has it done: prompt and output are the new prompt, by a higher run; what still runs
    of the old one is told to stop."""
    model = SlowModel(tiny_model, 0.0)
    async with running_fleet(
        runtime_settings, model, tiny_dir, num_decode=2, decode=NO_GRACE
    ) as fleet:
        around = fleet.around
        grammar = await _ticket(fleet, tiny_dir, tiny_model)
        calm = await _submit_all(fleet, "calm", grammar)
        await _finished(calm)
        around.decode_ids = ["decode-1"]
        for number, (kind, options) in enumerate(KINDS.items()):
            expected = calm[kind].token_ids
            num_known = len(expected) // 2
            await around.submit(
                f"lost {kind}",
                prompt(100 + 60 * number) + expected[:num_known],
                max_new_tokens=NUM_TOKENS,
                num_output_tokens=num_known,
                run=1 << 16,
                compiled_grammar=grammar if kind == "grammar" else None,
                **options,
            )
            output = around.output(f"lost {kind}")
            output.token_ids[:] = expected[:num_known]
            output.logprobs[:] = calm[kind].logprobs[:num_known]
            await around.finished(f"lost {kind}")
            assert _said(output) == _said(calm[kind]), kind
            assert output.num_prompt_tokens == 100 + 60 * number
        fleet.prefill[0][0].tensors.release(grammar)
        await fleet.nothing_held()


async def test_only_the_highest_run_counts(runtime_settings, tiny_model, tiny_dir, bare):
    model = SlowModel(tiny_model, 0.03)
    async with running_fleet(
        runtime_settings, model, tiny_dir, num_decode=2, decode=NO_GRACE
    ) as fleet:
        around = fleet.around
        options: dict[str, Any] = {"max_new_tokens": 200, "ignore_eos": True}
        await around.submit("r", prompt(50), **options)
        output = around.output("r")
        await until(lambda: len(output.token_ids) > 4, "tokens to come")
        request = decode_pb2.DropRunsRequest(request_id="r", before_run=5)
        await around.bus.publish(subjects.decode_drop_runs("decode-0"), request)
        await until(lambda: not fleet.held(), "the old run to be gone")
        await around.submit("r", prompt(50), run=5, msg_id="second", **options)
        await until(lambda: output.runs[-1] == 5, "the new run to come")
        await around.submit("r", prompt(50), run=4, msg_id="late", **options)
        await around.submit("r", prompt(50), run=6, msg_id="third", **options)
        model.step_s = 0.0
        assert (await around.finished("r")).token_ids == bare(prompt(50), 200)
        await until(lambda: not fleet.held(), "everything to be free", timeout_s=WAIT_S)
        assert 4 not in output.runs
