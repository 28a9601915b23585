"""Wire messages to kvmeta's own values and back: the only importer of generated code here."""

from collections.abc import Iterable, Sequence

from rorqual_policy import KEY_BYTES
from rorqual_proto.v1.generation_pb2 import TRAFFIC_CLASS_CHAT
from rorqual_proto.v1.kvmeta_pb2 import (
    ForgetBlocksRequest,
    Match,
    MatchReply,
    MatchRequest,
    RegisterBlocksReply,
    RegisterBlocksRequest,
    ReleaseLeaseRequest,
)
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_runtime.errors import InvalidRequest

from rorqual_kvmeta.blocks import BlockMatch, StoredBlock

__all__ = [
    "ForgetBlocksRequest",
    "LoadReport",
    "MatchReply",
    "MatchRequest",
    "RegisterBlocksReply",
    "RegisterBlocksRequest",
    "ReleaseLeaseRequest",
]


def keys_from_wire(keys: Iterable[bytes], path: str) -> list[bytes]:
    """Raises: InvalidRequest for a key of the wrong size."""
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
    """Raises: InvalidRequest for a key of the wrong size."""
    keys = keys_from_wire((block.key for block in request.blocks), "blocks")
    return [
        StoredBlock(
            key=key,
            size_bytes=block.size_bytes,
            is_chat=block.traffic_class == TRAFFIC_CLASS_CHAT,
            store=block.store,
        )
        for key, block in zip(keys, request.blocks, strict=True)
    ]


def match_to_wire(match: BlockMatch, lease_id: str, lease_expires_unix_s: float) -> MatchReply:
    return MatchReply(
        match=Match(
            num_matched_blocks=match.num_blocks,
            lease_id=lease_id,
            lease_expires_unix_s=lease_expires_unix_s,
            miss_reason=match.miss_reason,
        )
    )


def registered_to_wire(num_registered: int) -> RegisterBlocksReply:
    return RegisterBlocksReply(num_registered=num_registered)


def forget_from_wire(request: ForgetBlocksRequest) -> tuple[str, Sequence[bytes]]:
    """Fingerprint and keys. Raises: InvalidRequest."""
    return fingerprint_from_wire(request.model_fingerprint), keys_from_wire(request.keys, "keys")
