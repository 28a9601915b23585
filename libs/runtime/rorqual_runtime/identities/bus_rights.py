"""Which subjects each identity may send to and receive from: one table, from which the
configuration of NATS is written. What is not named here, NATS refuses."""

from __future__ import annotations

from dataclasses import dataclass

from rorqual_runtime import subjects as s

_DISCOVERY_VERBS = ("PING", "INFO", "STATS")
_DISCOVERS = ("$SRV.INFO", "$SRV.STATS")
_ANY = "*"


@dataclass(frozen=True, slots=True)
class BusRights:
    """Subjects beyond those that every identity has; `*` is any one token."""

    sends: tuple[str, ...] = ()
    """To publish to, or to ask."""
    receives: tuple[str, ...] = ()
    """To subscribe to. A service that receives a question may answer it, once."""
    askers: tuple[str, ...] = ()
    """Identities whose inboxes it may write to at any time; empty: whoever asks is answered once.
    For readers of a stream: NATS remembers each message with a reply subject until it is answered,
    and those of a stream are settled elsewhere."""
    is_service: bool = True
    """Shows up in discovery, reports its load, can be told to stop."""


def _queue_settling() -> tuple[str, ...]:
    """Whoever holds a job may renew, settle and bury it."""
    return f"$JS.ACK.{s.PREFILL_STREAM}.>", s.dead_letters()


def _queue_keeping() -> tuple[str, ...]:
    """Whoever keeps the waiting line makes the streams, and pulls."""
    api, stream = "$JS.API", s.PREFILL_STREAM
    streams = [
        f"{api}.STREAM.{verb}.{name}"
        for verb in ("CREATE", "UPDATE", "INFO")
        for name in (stream, s.DEAD_LETTER_STREAM)
    ]
    consumers = (f"{api}.CONSUMER.CREATE.{stream}.>", f"{api}.CONSUMER.MSG.NEXT.{stream}.*")
    return *streams, *consumers, *_queue_settling()


BUS_RIGHTS: dict[str, BusRights] = {
    "gateway": BusRights(
        sends=(
            *(s.recipe_encode(), s.recipe_take_over(_ANY), s.recipe_resend(_ANY)),
            *(s.recipe_render_error(), s.recipe_models(), s.router_submit(), s.cancel()),
        ),
        receives=(s.gateway_events(_ANY), s.all_loads(), s.scaler_decisions()),
    ),
    "recipe": BusRights(
        sends=(
            *(s.gateway_events(_ANY), s.cancel(), s.decode_resend(_ANY), s.vision_prepare()),
            *(s.decode_drop_runs(_ANY), s.decode_repeat(), s.router_submit(), *_DISCOVERS),
        ),
        receives=(
            *(s.recipe_encode(), s.recipe_take_over(_ANY), s.recipe_resend(_ANY)),
            *(s.recipe_render_error(), s.recipe_models(), s.recipe_tokens(_ANY), s.cancel()),
            s.loads_of("gateway"),
        ),
    ),
    "router": BusRights(
        sends=(
            *(s.prefill_jobs(_ANY, _ANY), s.prefill_assign(_ANY), s.recipe_tokens(_ANY)),
            *(s.kvmeta_match(), s.kvmeta_release(), s.grammar_compile(), s.vision_encode_at(_ANY)),
            *_queue_keeping(),
        ),
        receives=(
            *(s.router_submit(), s.router_place(), s.prefill_rooms(_ANY)),
            *(s.all_loads(), s.cancel()),
        ),
        askers=("gateway", "prefill", "decode", "recipe", "cli"),
    ),
    "prefill": BusRights(
        sends=(
            *(s.router_place(), s.prefill_rooms(_ANY), s.recipe_tokens(_ANY)),
            *(s.decode_handover(_ANY), s.decode_read(_ANY)),
            *(s.kvmeta_forget(), s.kvmeta_release(), s.window_fetch(_ANY), s.window_notices()),
            *(s.vision_encode(), s.vision_encode_at(_ANY)),
            *_queue_settling(),
        ),
        receives=(
            *(s.prefill_assign(_ANY), s.window_fetch(_ANY), s.cancel()),
            *(s.loads_of("router"), s.loads_of("decode")),
        ),
    ),
    "decode": BusRights(
        sends=(
            *(s.recipe_tokens(_ANY), s.grammar_compile(), s.kvmeta_register(), s.kvmeta_forget()),
            *(s.window_fetch(_ANY), s.window_notices()),
            *(s.router_place(), s.decode_handover(_ANY)),
        ),
        receives=(
            *(s.decode_handover(_ANY), s.decode_resend(_ANY), s.decode_read(_ANY)),
            *(s.decode_drop_runs(_ANY), s.decode_repeat()),
            *(s.kvmeta_drop(), s.kvmeta_hold(), s.window_fetch(_ANY), s.cancel()),
        ),
    ),
    "vision": BusRights(
        receives=(s.vision_prepare(), s.vision_encode(), s.vision_encode_at(_ANY), s.cancel()),
    ),
    "kvmeta": BusRights(
        sends=(s.kvmeta_events(), s.kvmeta_drop(), s.kvmeta_hold()),
        receives=(
            *(s.kvmeta_match(), s.kvmeta_register(), s.kvmeta_forget(), s.kvmeta_release()),
            *(s.kvmeta_clear(), s.kvmeta_events(), s.window_notices()),
        ),
    ),
    "grammar": BusRights(receives=(s.grammar_compile(), s.cancel())),
    "scaler": BusRights(
        sends=(s.scaler_decisions(), s.shutdown(_ANY, _ANY)),
        receives=(s.scaler_get_decision(), s.all_loads()),
    ),
    "cli": BusRights(
        sends=(*_DISCOVERS, s.kvmeta_clear(), s.scaler_get_decision()), is_service=False
    ),
    "recorder": BusRights(
        receives=(s.router_submit(), s.kvmeta_match(), s.recipe_tokens(_ANY)), is_service=False
    ),
}
"""By identity. `cli` is for whoever looks at a fleet and clears blocks (`rorqual ps`, `top`, `kv
clear`); `recorder` reads requests along (`rorqual record`)."""


def inbox_prefix(identity: str) -> str:
    """Below it lie the subjects at which an identity is answered."""
    return f"_INBOX.{identity}"


def send_subjects(identity: str) -> list[str]:
    """All that an identity may publish to, answers to a question apart."""
    rights = BUS_RIGHTS[identity]
    own = [s.load(identity, _ANY)] if rights.is_service else []
    answers = [f"{inbox_prefix(asker)}.>" for asker in rights.askers]
    return [*own, *rights.sends, *answers]


def receive_subjects(identity: str) -> list[str]:
    """All that an identity may subscribe to."""
    rights = BUS_RIGHTS[identity]
    own = [f"{inbox_prefix(identity)}.>"]
    if rights.is_service:
        own.append(s.shutdown(identity, _ANY))
        for verb in _DISCOVERY_VERBS:
            own += [f"$SRV.{verb}", f"$SRV.{verb}.rorqual-{identity}"]
            own += [f"$SRV.{verb}.rorqual-{identity}.*"]
    return [*own, *rights.receives]
