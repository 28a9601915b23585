"""Refused, unreachable or dead decode instances: the prompt goes elsewhere or its client hears."""

from __future__ import annotations

import asyncio
import signal

from rorqual_proto.v1 import decode_pb2, error_pb2

from tests.integration.prefill_decode.conftest import prompt
from tests.integration.prefill_decode.fleet import SlowModel, running_fleet
from tests.support.service_process import service_process
from tests.support.waiting import until


async def test_a_full_instance_is_passed_over(runtime_settings, tiny_model, tiny_dir, bare):
    model = SlowModel(tiny_model, 0.02)
    async with running_fleet(
        runtime_settings, model, tiny_dir, num_decode=2, decode={"max_running": 1}
    ) as fleet:
        around = fleet.around
        for n in range(2):
            await around.submit(f"r{n}", prompt(50, n), max_new_tokens=30, ignore_eos=True)
        outputs = [await around.finished(f"r{n}") for n in range(2)]
        assert [o.token_ids for o in outputs] == [bare(prompt(50, n), 30) for n in range(2)]
        assert {i for o in outputs for i in o.decode_ids} == {"decode-0", "decode-1"}
        assert any("decode-0" in p.excluded_ids for p in around.placements)
        await fleet.nothing_held()


async def test_a_prompt_waits_until_an_instance_has_room(
    runtime_settings, tiny_model, tiny_dir, bare
):
    model = SlowModel(tiny_model, 0.02)
    async with running_fleet(runtime_settings, model, tiny_dir, decode={"max_running": 1}) as fleet:
        around = fleet.around
        for n in range(3):
            await around.submit(f"r{n}", prompt(50, n), max_new_tokens=10, ignore_eos=True)
        for n in range(3):
            assert (await around.finished(f"r{n}")).token_ids == bare(prompt(50, n), 10)
        await fleet.nothing_held()


async def test_without_room_until_the_deadline_the_client_hears_of_it(
    runtime_settings, tiny_model, tiny_dir
):
    async with running_fleet(runtime_settings, tiny_model, tiny_dir, num_decode=0) as fleet:
        output = await fleet.around.complete("r", prompt(50), deadline_s=1.0)
        assert output.finish_reason == decode_pb2.FINISH_REASON_ERROR
        assert output.error_code == error_pb2.ERROR_CODE_NO_CAPACITY
        await fleet.nothing_held()
        assert await fleet.around.queue.depth() == 0


async def test_an_instance_that_is_gone_is_passed_over_at_once(
    runtime_settings, tiny_model, tiny_dir, bare
):
    patient = {"handover_timeout_s": 600}
    async with running_fleet(runtime_settings, tiny_model, tiny_dir, prefill=patient) as fleet:
        fleet.around.decode_ids.insert(0, "decode-of-yesterday")
        output = await fleet.around.complete("r", prompt(50), ignore_eos=True)
        assert output.token_ids == bare(prompt(50), 8)


async def test_an_instance_killed_during_the_handover(
    runtime_settings, nats_server, tiny_model, tiny_dir, bare, tmp_path
):
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        around = fleet.around
        env = {
            "RORQUAL_MODEL_DIR": str(tiny_dir),
            "RORQUAL_INSTANCE_ID": "decode-doomed",
            "RORQUAL_SHM_BYTES": str(8 << 20),
        }
        async with service_process(
            "decode", around.bus, nats_url=nats_server.url, home=tmp_path / "d", env=env
        ) as doomed:
            around.decode_ids.insert(0, "decode-doomed")
            doomed.process.send_signal(signal.SIGSTOP)
            await around.submit("r", prompt(300), ignore_eos=True)
            await until(lambda: around.placements, "the handover to begin")
            await asyncio.sleep(0.3)
            doomed.process.kill()
            output = await around.finished("r")
        assert output.decode_ids == {"decode-0"}
        assert output.token_ids == bare(prompt(300), 8)
        await fleet.nothing_held()
