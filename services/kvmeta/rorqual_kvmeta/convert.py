"""Wire messages to kvmeta's own values and back: the only importer of generated code here."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rorqual_policy import KEY_BYTES
from rorqual_policy.provenance import Provenance
from rorqual_proto.v1.generation_pb2 import TRAFFIC_CLASS_CHAT
from rorqual_proto.v1.kvmeta_pb2 import (
    BlockEvents,
    ClearBlocksReply,
    ClearBlocksRequest,
    DropBlocksRequest,
    ForgetBlocksRequest,
    HoldBlocksRequest,
    Match,
    MatchReply,
    MatchRequest,
    RegisterBlocksReply,
    RegisterBlocksRequest,
    ReleaseLeaseRequest,
    WindowNotice,
)
from rorqual_proto.v1.kvmeta_pb2 import BlockRecord as WireBlock
from rorqual_proto.v1.kvmeta_pb2 import WindowPlace as WirePlace
from rorqual_proto.v1.load_pb2 import KvmetaLoad, LoadReport
from rorqual_runtime.errors import InvalidRequest

from rorqual_kvmeta.index import IndexMatch
from rorqual_kvmeta.records import Keys, StoredBlock, keys_of, packed_keys, tag
from rorqual_kvmeta.window_places import WindowPlace

__all__ = [
    "BlockEvents",
    "ClearBlocksReply",
    "ClearBlocksRequest",
    "DropBlocksRequest",
    "ForgetBlocksRequest",
    "HoldBlocksRequest",
    "LoadReport",
    "MatchReply",
    "MatchRequest",
    "RegisterBlocksReply",
    "RegisterBlocksRequest",
    "ReleaseLeaseRequest",
    "WindowNotice",
]

MAX_LIFETIME_S = 10 * 365 * 86_400.0


def asked_keys(request: MatchRequest) -> Keys:
    """Raises: InvalidRequest for keys of the wrong size."""
    if len(request.packed_block_keys) % KEY_BYTES:
        raise InvalidRequest(f"a block key has {KEY_BYTES} bytes", "packed_block_keys")
    return packed_keys(request.packed_block_keys)


def keys_from_wire(keys: Iterable[bytes], path: str) -> Keys:
    """Raises: InvalidRequest for a key of the wrong size."""
    return keys_of(_checked(keys, path))


def _checked(keys: Iterable[bytes], path: str) -> list[bytes]:
    checked = list(keys)
    for index, key in enumerate(checked):
        if len(key) != KEY_BYTES:
            raise InvalidRequest(f"a block key has {KEY_BYTES} bytes", f"{path}[{index}]")
    return checked


def fingerprint_from_wire(fingerprint: str) -> str:
    """Raises: InvalidRequest when it is empty: keys mean nothing without the model."""
    if not fingerprint:
        raise InvalidRequest("the model fingerprint is missing", "model_fingerprint")
    return fingerprint


def blocks_from_wire(request: RegisterBlocksRequest) -> list[StoredBlock]:
    """Raises: InvalidRequest for a key of the wrong size or a lifetime that is none."""
    _checked((block.key for block in request.blocks), "blocks")
    return [_block_from_wire(block, index) for index, block in enumerate(request.blocks)]


def _block_from_wire(block: WireBlock, index: int) -> StoredBlock:
    if not 0 <= block.lifetime_s <= MAX_LIFETIME_S:
        limits = f"lifetime_s goes from 0 to {MAX_LIFETIME_S:.0f}"
        raise InvalidRequest(limits, f"blocks[{index}].lifetime_s")
    return StoredBlock(
        key=block.key,
        size_bytes=block.size_bytes,
        is_chat=block.traffic_class == TRAFFIC_CLASS_CHAT,
        store=block.store,
        tenant=block.tenant,
        provenance=Provenance.REPLAYED if block.provenance else Provenance.EXACT,
        position=block.position,
        lifetime_s=block.lifetime_s,
        content_key=block.content_key if len(block.content_key) == KEY_BYTES else b"",
    )


def place_from_wire(notice: WindowNotice) -> WindowPlace:
    """What a holder of a window state says of it."""
    return WindowPlace(notice.holder_id, notice.expires_unix_s, notice.replayed)


def match_to_wire(
    match: IndexMatch,
    lease_id: str,
    lease_expires_unix_s: float,
    windows: Iterable[tuple[int, WindowPlace]],
) -> MatchReply:
    return MatchReply(
        match=Match(
            num_matched_blocks=match.num_blocks,
            num_exact_blocks=match.num_exact,
            lease_id=lease_id,
            lease_expires_unix_s=lease_expires_unix_s,
            miss_reason=match.miss_reason,
            windows=[
                WirePlace(
                    num_blocks=num_blocks,
                    holder_id=place.holder_id,
                    expires_unix_s=place.expires_unix_s,
                    replayed=place.is_replayed,
                )
                for num_blocks, place in windows
            ],
        )
    )


def registered_to_wire(num_registered: int) -> RegisterBlocksReply:
    return RegisterBlocksReply(num_registered=num_registered)


def forget_from_wire(request: ForgetBlocksRequest) -> Keys:
    """Raises: InvalidRequest."""
    fingerprint_from_wire(request.model_fingerprint)
    return keys_from_wire(request.keys, "keys")


def clear_from_wire(request: ClearBlocksRequest) -> tuple[int | None, int | None]:
    """Tags of the model and the tenant; None = any."""
    model = tag(request.model_fingerprint) if request.model_fingerprint else None
    return model, tag(request.tenant) if request.has_tenant else None


def cleared_to_wire(num_cleared: int) -> ClearBlocksReply:
    return ClearBlocksReply(num_cleared=num_cleared)


def events_to_wire(
    message: BlockEvents, publisher_id: str, incarnation: int, seq: int
) -> BlockEvents:
    """The message under its number."""
    message.publisher_id, message.incarnation, message.seq = publisher_id, incarnation, seq
    return message


def contents_from_wire(message: BlockEvents) -> Iterator[tuple[bytes, bytes]]:
    """Pairs of content key and first block's key; a torn one is left out."""
    packed, pair = message.contents, 2 * KEY_BYTES
    for start in range(0, len(packed) - pair + 1, pair):
        yield packed[start : start + KEY_BYTES], packed[start + KEY_BYTES : start + pair]


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """What an instance reports of itself."""

    num_active: int
    num_leases: int
    num_blocks: int
    index_bytes: int
    is_loaded: bool
    num_resyncs: int
    num_pending: int
    num_quota_evicted: int
    num_asked: int
    num_matched: int
    misses: Mapping[str, int]


def fill_load(report: LoadReport, facts: IndexFacts) -> None:
    report.num_active_requests = facts.num_active
    report.num_held_leases = facts.num_leases
    report.kvmeta.CopyFrom(
        KvmetaLoad(
            num_blocks=facts.num_blocks,
            index_bytes=facts.index_bytes,
            loaded=facts.is_loaded,
            resyncs_total=facts.num_resyncs,
            matched_blocks_total=facts.num_matched,
            asked_blocks_total=facts.num_asked,
            misses_total=facts.misses,
            quota_evicted_total=facts.num_quota_evicted,
            pending_blocks=facts.num_pending,
        )
    )
