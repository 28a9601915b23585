"""Wire <-> domain: the only importer of generated messages in this service."""

from __future__ import annotations

from rorqual_proto.v1 import load_pb2, router_pb2, tensor_pb2, vision_pb2

CancelMessage = router_pb2.CancelRequest
EncodeMessage = vision_pb2.VisionEncodeRequest
EncodeReplyMessage = vision_pb2.VisionEncodeReply
LoadMessage = load_pb2.LoadReport
Image = tensor_pb2.Payload
