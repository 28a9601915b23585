"""Every NATS subject of the system. Nothing else builds one.

Instance ids, pools and buckets are single tokens: letters, digits, dash and underscore.
"""

from __future__ import annotations

import re

PREFIX = "rorqual.v1"
PREFILL_STREAM = "RORQUAL_PREFILL"
DEAD_LETTER_STREAM = "RORQUAL_DEAD_LETTERS"

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")


def is_token(text: str) -> bool:
    """Whether `text` can stand between two dots of a subject."""
    return _TOKEN.fullmatch(text) is not None


def _subject(*tokens: str) -> str:
    for token in tokens:
        if token != "*" and not is_token(token):
            raise ValueError(f"not a subject token: {token!r}")
    return ".".join((PREFIX, *tokens))


def recipe_encode() -> str:
    return _subject("recipe", "encode")


def recipe_take_over(recipe_id: str) -> str:
    """Asks one recipe instance to go on with an answer that another one began."""
    return _subject("recipe", "take_over", recipe_id)


def recipe_render_error() -> str:
    return _subject("recipe", "render_error")


def recipe_models() -> str:
    return _subject("recipe", "models")


def recipe_tokens(recipe_id: str) -> str:
    """Token batches for the streams of one recipe instance."""
    return _subject("recipe", "tokens", recipe_id)


def recipe_resend(recipe_id: str) -> str:
    """Asks one recipe instance for events that did not arrive."""
    return _subject("recipe", "resend", recipe_id)


def gateway_events(gateway_id: str) -> str:
    """Event batches for the clients of one gateway instance."""
    return _subject("gateway", "events", gateway_id)


def router_submit() -> str:
    return _subject("router", "submit")


def router_place() -> str:
    return _subject("router", "place")


def prefill_jobs(pool: str, bucket: str) -> str:
    """The work queue of one pool and length bucket; `*` stands for all of them."""
    return _subject("prefill", "jobs", pool, bucket)


def prefill_rooms(pool: str) -> str:
    """What the instances of a pool could take on, for the router that keeps the waiting line."""
    return _subject("prefill", "rooms", pool)


def prefill_assign(prefill_id: str) -> str:
    """Gives one instance a job with its lease."""
    return _subject("prefill", "assign", prefill_id)


def dead_letters() -> str:
    return _subject("dead_letters")


def decode_handover(decode_id: str) -> str:
    return _subject("decode", "handover", decode_id)


def decode_resend(decode_id: str) -> str:
    return _subject("decode", "resend", decode_id)


def decode_drop_runs(decode_id: str) -> str:
    """Tells one decode instance that others have gone on with what it still runs."""
    return _subject("decode", "drop_runs", decode_id)


def decode_repeat() -> str:
    """Asks all decode instances to tell an instance of recipe again what they told it last."""
    return _subject("decode", "repeat")


def decode_read(decode_id: str) -> str:
    """Asks one decode instance to read stored blocks."""
    return _subject("decode", "read", decode_id)


def kvmeta_match() -> str:
    return _subject("kvmeta", "match")


def kvmeta_register() -> str:
    return _subject("kvmeta", "register")


def kvmeta_forget() -> str:
    return _subject("kvmeta", "forget")


def kvmeta_release() -> str:
    return _subject("kvmeta", "release")


def kvmeta_clear() -> str:
    return _subject("kvmeta", "clear")


def kvmeta_drop() -> str:
    """Blocks that stores are to delete, for everyone that has one."""
    return _subject("kvmeta", "drop")


def kvmeta_hold() -> str:
    """Blocks that stores are not to evict for a while, for one of those who share each."""
    return _subject("kvmeta", "hold")


def kvmeta_events() -> str:
    """What one kvmeta instance has changed, for all of them."""
    return _subject("kvmeta", "events")


def window_notices() -> str:
    """Who keeps which window state, for everyone that computes prompts."""
    return _subject("windows", "notices")


def window_fetch(holder_id: str) -> str:
    """Asks one instance for a window state that it keeps."""
    return _subject("windows", "fetch", holder_id)


def grammar_compile() -> str:
    return _subject("grammar", "compile")


def vision_prepare() -> str:
    return _subject("vision", "prepare")


def vision_encode() -> str:
    return _subject("vision", "encode")


def vision_encode_at(vision_id: str) -> str:
    """The same at one instance: the router's choice, or who has the image already."""
    return _subject("vision", "encode", vision_id)


def cancel() -> str:
    """Broadcast: everybody lets go of one request."""
    return _subject("cancel")


def load(service: str, instance_id: str) -> str:
    return _subject("load", service, instance_id)


def all_loads() -> str:
    """Wildcard over the load reports of all instances of all services."""
    return _subject("load", "*", "*")


def loads_of(service: str) -> str:
    """Wildcard over the load reports of all instances of one service."""
    return _subject("load", service, "*")


def is_load_of(subject: str, service: str, instance_id: str) -> bool:
    """Whether a load report came on the subject of the instance that it tells of. NATS lets a
    service report on subjects of its own name only, so what it says about others is not true."""
    return subject.split(".")[-2:] == [service, instance_id]


def scaler_decisions() -> str:
    return _subject("scaler", "decisions")


def scaler_get_decision() -> str:
    return _subject("scaler", "get_decision")


def shutdown(service: str, instance_id: str) -> str:
    """Asks one instance to drain and stop, as SIGTERM would."""
    return _subject("instance", "shutdown", service, instance_id)
