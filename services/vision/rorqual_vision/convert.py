"""Wire <-> domain: the only importer of generated messages in this service."""

from __future__ import annotations

from typing import Any

from rorqual_proto.v1 import load_pb2, router_pb2, tensor_pb2, vision_pb2

CancelMessage = router_pb2.CancelRequest
PrepareMessage = vision_pb2.VisionPrepareRequest
PrepareReplyMessage = vision_pb2.VisionPrepareReply
EncodeMessage = vision_pb2.VisionEncodeRequest
EncodeReplyMessage = vision_pb2.VisionEncodeReply
LoadMessage = load_pb2.LoadReport
Image = tensor_pb2.Payload


def prepared_to_wire(
    *, digest: bytes, grid: tuple[int, int], num_tokens: int, num_patches: int, pixels: Any
) -> PrepareReplyMessage:
    """What an image will be to the model."""
    return vision_pb2.VisionPrepareReply(
        prepared=vision_pb2.VisionPrepared(
            image_digest=digest,
            num_rows=grid[0],
            num_columns=grid[1],
            num_tokens=num_tokens,
            num_patches=num_patches,
            pixels=pixels,
        )
    )


def encoded_to_wire(digest: bytes, ticket: Any, num_tokens: int) -> EncodeReplyMessage:
    """Where an image's embeddings can be read."""
    return vision_pb2.VisionEncodeReply(
        encoded=vision_pb2.VisionEncoded(
            embeddings=ticket, num_tokens=num_tokens, image_digest=digest
        )
    )


def fill_load(
    report: LoadMessage,
    *,
    queued_patches: int,
    step_patches: int,
    patches_per_s: float,
    asked_patches_total: int,
) -> None:
    """What vision adds to its load reports."""
    report.vision.queued_patches = queued_patches
    report.vision.step_patches = step_patches
    report.vision.patches_per_s = patches_per_s
    report.vision.asked_patches_total = asked_patches_total
