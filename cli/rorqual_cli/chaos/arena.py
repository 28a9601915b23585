"""A fleet of two of everything, made so that every fault of the table can strike it."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from rorqual_cli.chaos.answers import Answer
from rorqual_cli.chaos.client import REQUEST_TIMEOUT_S, Client
from rorqual_cli.chaos.clocks import Clocks
from rorqual_cli.chaos.disk import open_disk
from rorqual_cli.chaos.injector import Injector
from rorqual_cli.chaos.load import Load, ask_each
from rorqual_cli.chaos.plan import INSTANCES, RELAYED, RELAYED_REDIS, Kind
from rorqual_cli.chaos.questions import Question, make_questions
from rorqual_cli.chaos.relay_process import FarRelay, open_relays
from rorqual_cli.chaos.watch import FleetWatch
from rorqual_cli.fleet import Fleet
from rorqual_cli.model import ensure_model
from rorqual_cli.options import FleetOptions
from rorqual_cli.report import Reporter

_DISK_BYTES = 4 << 30
_STORE_BYTES = 256 << 20
_RELAYED = (
    *((Kind.HALF_OPEN, name) for name in RELAYED),
    *((Kind.HALF_OPEN_REDIS, name) for name in RELAYED_REDIS),
)


@dataclass
class Arena:
    """expected: the right answer of each question, by its number. usual_s: how long it took."""

    questions: Sequence[Question]
    expected: Mapping[int, Answer]
    usual_s: Sequence[float]
    client: Client
    injector: Injector
    watch: FleetWatch

    def load(self, num_clients: int) -> Load:
        """So many clients, that do not ask yet."""
        return Load(self.client, self.questions, num_clients)


@asynccontextmanager
async def open_arena(
    model: str,
    home: Path,
    report: Reporter,
    *,
    seed: int,
    at_once: int,
    instances: Mapping[str, int] = INSTANCES,
    num_questions: int = 48,
) -> AsyncIterator[Arena]:
    """Started, and asked every question once; stopped at the end.

    model: as for `rorqual up`. home: where models are kept; all else is thrown away.
    instances: by service, one where nothing is said.
    Raises: CliError.
    """
    model_dir = await ensure_model(model, home.resolve(), report.say)
    async with AsyncExitStack() as stack:
        disk = stack.enter_context(open_disk(_DISK_BYTES))
        clocks = Clocks(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        opened = await stack.enter_async_context(open_relays(len(_RELAYED)))
        relays = dict(zip(_RELAYED, opened, strict=True))
        fleet = Fleet(_options(disk.path, model_dir, instances, clocks, relays), report)
        for (kind, _), relay in relays.items():
            is_nats = kind is Kind.HALF_OPEN
            relay.lead_to(fleet.endpoints.nats_port if is_nats else fleet.endpoints.redis_port)
        stack.push_async_callback(fleet.stop)
        await fleet.start()
        limits = httpx.Limits(max_keepalive_connections=0)
        http = await stack.enter_async_context(
            httpx.AsyncClient(timeout=REQUEST_TIMEOUT_S, limits=limits, trust_env=False)
        )
        client = Client(fleet.endpoints.base_urls, http)
        questions = make_questions(
            seed, _model_id(model_dir), num_questions, images=_can_see(model_dir)
        )
        calm = await ask_each(client, questions, at_once)
        watch = FleetWatch(fleet)
        injector = Injector(fleet, watch, disk=disk, clocks=clocks, relays=relays)
        yield Arena(
            questions,
            expected={number: each.answer for number, each in enumerate(calm)},
            usual_s=[each.seconds for each in calm],
            client=client,
            injector=injector,
            watch=watch,
        )


def _options(
    home: Path,
    model_dir: Path,
    instances: Mapping[str, int],
    clocks: Clocks,
    relays: Mapping[tuple[Kind, str], FarRelay],
) -> FleetOptions:
    return FleetOptions(
        home=home,
        model=str(model_dir),
        port=0,
        num_instances=instances,
        drain_s=5.0,
        ready_timeout_s=300.0,
        env={
            "RORQUAL_PREFILL_CALIBRATE_S": "0",
            "RORQUAL_PREFILL_MAX_ACTIVE": "16",  # window slots that are all in use within minutes
            "RORQUAL_KVMETA_TEND_INTERVAL_S": "0.5",  # how soon it counts leases anew
            "RORQUAL_KVMETA_LEASE_S": "10",  # of those whose holder was cut off, the longest wait
            "RORQUAL_ROUTER_EXACT_PREFIXES": "1",  # or a lost window would change answers
            "RORQUAL_PREFILL_STORE_CAPACITY_BYTES": str(_STORE_BYTES),
            "RORQUAL_DECODE_STORE_CAPACITY_BYTES": str(_STORE_BYTES),
            **clocks.env(),
        },
        instance_env=_instance_env(relays, instances.get("decode", 1)),
    )


def _instance_env(
    relays: Mapping[tuple[Kind, str], FarRelay], num_decode: int
) -> dict[str, dict[str, str]]:
    """By instance id: where it finds the servers. What decode has at a stop moves at once, and has
    the time for it."""
    env: dict[str, dict[str, str]] = defaultdict(dict)
    for (kind, name), relay in relays.items():
        if kind is Kind.HALF_OPEN:
            env[name]["RORQUAL_NATS_URL"] = f"nats://127.0.0.1:{relay.port}"
        else:
            env[name]["RORQUAL_REDIS_URL"] = f"redis://127.0.0.1:{relay.port}/0"
    for number in range(1, num_decode + 1):
        env[f"decode-{number}"] |= {"RORQUAL_DRAIN_S": "30", "RORQUAL_DECODE_DRAIN_GRACE_S": "0"}
    return env


def _model_id(model_dir: Path) -> str:
    return str(json.loads((model_dir / "rorqual.json").read_text())["id"])


def _can_see(model_dir: Path) -> bool:
    config = json.loads((model_dir / "config.json").read_text())
    return bool(config.get("vision_config"))
