"""Each identity of a fleet may use its own subjects and nothing else: real keys, real NATS."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from nats.aio.client import Client
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.connection import sign_in
from rorqual_runtime.errors import Unavailable, Unsupported
from rorqual_runtime.identities.bus_rights import (
    BUS_RIGHTS,
    inbox_prefix,
    receive_subjects,
    send_subjects,
)
from rorqual_runtime.identities.certificates import KeyPair, is_good, is_pair
from rorqual_runtime.identities.files import NATS_SEED, read_key_pair
from rorqual_runtime.identities.issue import NATS_AUTHORIZATION, REDIS_USERS, issue
from rorqual_runtime.identities.nkeys import UserKey
from rorqual_runtime.settings import RuntimeSettings

from tests.support import servers
from tests.support.bus import answer_place, ask_place, matches, serve_place
from tests.support.waiting import WAIT_S, until

IDENTITIES = sorted(BUS_RIGHTS)
STRANGERS = (">", "rorqual.>", "$SYS.>", "$JS.API.STREAM.LIST", "$JS.API.INFO", "_INBOX.>", "other")
EVERYTHING = sorted(
    {one for name in IDENTITIES for one in (*send_subjects(name), *receive_subjects(name))}
)
REFUSED = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')
"""As the client library tells it: in small letters."""


@pytest_asyncio.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[servers.NatsServer]:
    """NATS that asks who is there; the identities' files are in tmp_path/secrets."""
    issue(tmp_path / "secrets")
    config = str(tmp_path / "secrets" / NATS_AUTHORIZATION)
    async with servers.nats_server(tmp_path, extra_args=["-c", config]) as server:
        yield server


@asynccontextmanager
async def signed_in(url: str, secrets_dir: Path, errors: list[str]) -> AsyncIterator[Client]:
    client = Client()

    async def on_error(error: Exception) -> None:
        errors.append(str(error))

    identity = sign_in(client, [url], secrets_dir)
    await client.connect(url, error_cb=on_error, allow_reconnect=False, **identity)
    try:
        yield client
    finally:
        await client.close()


def refused(errors: list[str]) -> set[tuple[str, ...]]:
    """What the server did not let through: (publish or subscription, subject)."""
    return {found.groups() for error in errors if (found := REFUSED.search(error))}


def concrete(pattern: str) -> str:
    """A subject that the pattern stands for."""
    return pattern.replace("*", "one").replace(">", "one.more")


@pytest.mark.parametrize("identity", IDENTITIES)
async def test_an_identity_uses_its_own_subjects_and_nothing_else(
    identity: str, guarded: servers.NatsServer, tmp_path: Path
) -> None:
    asked = [*map(concrete, EVERYTHING), *(s for s in STRANGERS if not s.endswith(">"))]
    wide = [s for s in STRANGERS if s.endswith(">")]
    sends, receives = send_subjects(identity), receive_subjects(identity)
    expected = {("publish", s.lower()) for s in asked if not any(matches(p, s) for p in sends)}
    expected |= {
        ("subscription", s.lower())
        for s in (*asked, *wide)
        if not any(matches(p, s) for p in receives)
    }
    errors: list[str] = []
    async with signed_in(guarded.url, tmp_path / "secrets" / identity, errors) as client:
        for subject in asked:
            await client.publish(subject, b"")
        for subject in (*asked, *wide):
            await client.subscribe(subject)
        await client.flush()
        await until(lambda: refused(errors) >= expected, lambda: f"{expected - refused(errors)}")
    assert refused(errors) == expected > {("subscription", s.lower()) for s in wide}


@pytest.mark.parametrize(
    ("subject", "readers"),
    [
        (subjects.recipe_encode(), {"recipe"}),
        (subjects.recipe_take_over("r"), {"recipe"}),
        (subjects.recipe_tokens("r"), {"recipe", "recorder"}),
        (subjects.router_submit(), {"router", "recorder"}),
        (subjects.prefill_jobs("default", "lt16k"), set()),
        (subjects.prefill_assign("p"), {"prefill"}),
        (subjects.decode_handover("d"), {"decode"}),
        (subjects.gateway_events("g"), {"gateway"}),
        (subjects.vision_prepare(), {"vision"}),
        (f"{inbox_prefix('gateway')}.a.1", {"gateway"}),
        (f"{inbox_prefix('recipe')}.a.1", {"recipe"}),
    ],
)
def test_what_requests_say_is_read_by_whom_it_is_for(subject: str, readers: set[str]) -> None:
    assert readers == {
        name for name in IDENTITIES if any(matches(p, subject) for p in receive_subjects(name))
    }


def test_only_the_router_reads_the_queue() -> None:
    reading = f"$JS.API.CONSUMER.MSG.NEXT.{subjects.PREFILL_STREAM}.any"
    making = f"$JS.API.CONSUMER.CREATE.{subjects.PREFILL_STREAM}.any.more"
    for name, subject in itertools.product(IDENTITIES, (reading, making)):
        allowed = any(matches(p, subject) for p in send_subjects(name))
        assert allowed == (name == "router"), name


async def test_nobody_gets_in_without_a_key_that_was_issued(
    guarded: servers.NatsServer, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / NATS_SEED).write_text(UserKey.generate().seed)
    for secrets_dir in (None, stranger):
        settings = RuntimeSettings(nats_url=guarded.url, secrets_dir=secrets_dir)
        with pytest.raises(Unavailable, match=r"(?i)authorization violation"):
            await Bus.connect(settings, "router", timeout_s=1.0)


async def test_a_question_is_answered_once_and_nobody_else_writes_to_the_inbox(
    guarded: servers.NatsServer, tmp_path: Path
) -> None:
    def settings(identity: str) -> RuntimeSettings:
        return RuntimeSettings(
            nats_url=guarded.url, home=tmp_path, secrets_dir=tmp_path / "secrets" / identity
        )

    router = await Bus.connect(settings("router"), "router")
    prefill = await Bus.connect(settings("prefill"), "prefill")
    await serve_place(router, answer_place)
    assert await ask_place(prefill, "one") == "decode-one"
    await prefill.close()

    errors: list[str] = []
    async with signed_in(guarded.url, tmp_path / "secrets" / "grammar", errors) as grammar:
        replies = asyncio.Queue[str]()

        async def answer_twice(message) -> None:
            await replies.put(message.reply)
            await grammar.publish(message.reply, b"first")
            await grammar.publish(message.reply, b"second")

        await grammar.subscribe(subjects.grammar_compile(), cb=answer_twice)
        await grammar.flush()
        asking = asyncio.create_task(
            router.connection.request(subjects.grammar_compile(), b"", {}, timeout_s=WAIT_S)
        )
        reply = await asyncio.wait_for(replies.get(), WAIT_S)
        assert (await asking).data == b"first"
        await grammar.publish(inbox_prefix("gateway") + ".a.1", b"not asked")

        unasked = {("publish", s.lower()) for s in (reply, inbox_prefix("gateway") + ".a.1")}
        await until(lambda: unasked <= refused(errors), lambda: f"refusals, beside {errors}")

    errors.clear()
    async with signed_in(guarded.url, tmp_path / "secrets" / "grammar", errors) as grammar:
        asked: list[str] = []

        async def answer_late(message) -> None:
            asked.append(message.reply)
            if len(asked) == 2:  # it was sent again meanwhile
                for each in asked:
                    await grammar.publish(each, b"late")
                await grammar.flush()

        await grammar.subscribe(subjects.grammar_compile(), cb=answer_late)
        await grammar.flush()
        late = await router.connection.request_once(
            subjects.grammar_compile(), b"", {}, WAIT_S, again_s=0.05
        )
        await grammar.flush()
        assert late.data == b"late" and not errors

    async with signed_in(guarded.url, tmp_path / "secrets" / "recorder", errors) as recorder:

        async def forge(message) -> None:
            await replies.put(message.reply)
            await recorder.publish(message.reply, b"forged")

        await recorder.subscribe(subjects.kvmeta_match(), cb=forge)
        await recorder.flush()
        asking = asyncio.create_task(
            router.connection.request(subjects.kvmeta_match(), b"", {}, timeout_s=WAIT_S)
        )
        forged = ("publish", (await asyncio.wait_for(replies.get(), WAIT_S)).lower())
        await until(lambda: forged in refused(errors), lambda: f"a refusal, beside {errors}")
        assert not asking.done()
        asking.cancel()
    await router.close()


async def test_tls_trusts_the_fleets_own_authority(tmp_path: Path) -> None:
    issue(tmp_path / "secrets")
    folder = tmp_path / "secrets" / "nats"
    tls = ["--tls", "--tlscert", str(folder / "tls.crt"), "--tlskey", str(folder / "tls.key")]
    config = ["-c", str(tmp_path / "secrets" / NATS_AUTHORIZATION)]
    async with servers.nats_server(tmp_path, extra_args=[*config, *tls]) as server:

        def settings(home: Path) -> RuntimeSettings:
            return RuntimeSettings(nats_url=f"tls://localhost:{server.port}", secrets_dir=home)

        bus = await Bus.connect(settings(tmp_path / "secrets" / "router"), "router")
        assert bus.is_connected
        await bus.close()
        issue(tmp_path / "others")
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            await Bus.connect(settings(tmp_path / "others" / "router"), "router", timeout_s=1.0)


def test_keys_stay_when_issued_again_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    issue(tmp_path)
    seeds = {name: (tmp_path / name / NATS_SEED).read_text() for name in IDENTITIES}
    assert len(set(seeds.values())) == len(IDENTITIES)
    assert not any(
        seed.strip() in (tmp_path / NATS_AUTHORIZATION).read_text() for seed in seeds.values()
    )
    (tmp_path / "decode" / NATS_SEED).unlink()
    issue(tmp_path)
    again = {name: (tmp_path / name / NATS_SEED).read_text() for name in IDENTITIES}
    assert {name for name in IDENTITIES if again[name] != seeds[name]} == {"decode"}
    for name in IDENTITIES:
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
        assert (tmp_path / name / NATS_SEED).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "name",
    [
        *("router/nats.nk", "kvmeta/redis.password"),
        *("router/tls.key", "router/tls.crt", "router/ca.crt", "ca.key", "ca.crt"),
    ],
)
@pytest.mark.parametrize("is_gone", [True, False])
def test_an_empty_file_is_made_anew_as_one_that_is_gone(
    name: str, is_gone: bool, tmp_path: Path
) -> None:
    issue(tmp_path)
    path = tmp_path / name
    path.unlink() if is_gone else path.write_text("\n")
    issue(tmp_path)
    assert path.read_bytes().strip()
    nobody = hashlib.sha256(b"").hexdigest()
    assert nobody not in (tmp_path / REDIS_USERS).read_text()
    authority = KeyPair((tmp_path / "ca.key").read_bytes(), (tmp_path / "ca.crt").read_bytes())
    pair, trusted = read_key_pair(tmp_path / "router") or pytest.fail("no key")
    assert is_pair(authority) and is_pair(pair) and is_good(pair.certificate, authority)
    assert trusted == authority.certificate


@pytest.mark.parametrize("name", ["router/nats.nk", "kvmeta/redis.password", "ca.key", "ca.crt"])
def test_a_file_that_is_not_what_it_should_be_is_named_with_what_helps(
    name: str, tmp_path: Path
) -> None:
    issue(tmp_path)
    (tmp_path / name).write_bytes(b"\xff not this")
    with pytest.raises(ValueError, match=rf"{name}.*; delete .*issue again"):
        issue(tmp_path)


@pytest.mark.parametrize("text", ["", "SU", "S" * 58, None])
def test_a_seed_that_is_none_is_named_with_its_file(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / NATS_SEED).write_text(text)
    with pytest.raises(Unsupported, match=f"RORQUAL_SECRETS_DIR: .*{NATS_SEED}"):
        sign_in(Client(), [], tmp_path)
