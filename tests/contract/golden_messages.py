"""One message or more a boundary, with every field kind in use.

After a deliberate, compatible addition, `python -m tests.contract.golden_messages` writes them.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import Message
from rorqual_proto.v1 import (
    decode_pb2,
    error_pb2,
    generation_pb2,
    grammar_pb2,
    kvmeta_pb2,
    load_pb2,
    prefill_pb2,
    recipe_pb2,
    router_pb2,
    scaler_pb2,
    tensor_pb2,
    vision_pb2,
)

KEY = bytes(range(16))

ERROR = error_pb2.ErrorInfo(
    code=error_pb2.ERROR_CODE_CONTEXT_TOO_LONG,
    message="too long",
    param="messages",
    retry_after_s=3,
    details={"limit_tokens": "8192", "prompt_tokens": "9000"},
)
TICKET = tensor_pb2.TensorTicket(
    owner_id="prefill-1",
    incarnation=1_760_000_000_000,
    slot=3,
    generation=7,
    size_bytes=4096,
    dtype="bfloat16",
    shape=[2, 1024],
    xxh3_64=0x0123_4567_89AB_CDEF,
    expires_unix_s=1_760_000_030.5,
    endpoints=[
        tensor_pb2.TensorEndpoint(
            shm=tensor_pb2.ShmEndpoint(
                host_id="h", segment="s", offset_bytes=4096, header_offset_bytes=64
            )
        ),
        tensor_pb2.TensorEndpoint(grpc=tensor_pb2.GrpcEndpoint(address="127.0.0.1:5000")),
    ],
)
GENERATION = generation_pb2.Generation(
    request_id="r1",
    choice_index=1,
    model="m",
    prompt=tensor_pb2.Payload(inline=b"\x01\x00\x00\x00\x02\x00\x00\x00"),
    num_prompt_tokens=2,
    sampling=generation_pb2.SamplingParams(
        temperature=0.5,
        top_p=0.75,
        top_k=40,
        min_p=0.25,
        seed=2**63 + 1,
        max_new_tokens=16,
        stop_token_ids=[2, 7],
        ignore_eos=True,
        logprobs=True,
        top_logprobs=5,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.25,
        logit_bias=[generation_pb2.LogitBias(token_id=11, bias=-100.0)],
        min_new_tokens=2,
    ),
    constraint=generation_pb2.Constraint(
        kind=generation_pb2.CONSTRAINT_KIND_REGEX, source="[a-z]+"
    ),
    traffic_class=generation_pb2.TRAFFIC_CLASS_AGENT,
    cache_namespace="tenant/salt",
    reply=generation_pb2.ReplyRoute(recipe_id="recipe-1", gateway_id="gateway-1"),
    deadline_unix_s=1_760_000_600.0,
    tenant="tenant",
    adapter="adapter",
)

GOLDEN: dict[str, Message] = {
    "error_info": ERROR,
    "tensor_ticket": TICKET,
    "tensor_payload": tensor_pb2.Payload(ticket=TICKET),
    "generation": GENERATION,
    "prefill_job": prefill_pb2.PrefillJob(
        generation=GENERATION,
        num_matched_blocks=1,
        kv_lease_id="lease",
        compiled_grammar=TICKET,
        submitted_unix_s=1_760_000_000.25,
        num_exact_blocks=1,
        exact_only=True,
    ),
    "handover_request": decode_pb2.HandoverRequest(
        generation=GENERATION,
        last_block_key=KEY,
        num_stored_blocks=1,
        num_cached_tokens=128,
        kv_pages=TICKET,
        first_logits=TICKET,
        model_fingerprint="f",
        submitted_unix_s=1.5,
        replayed=True,
    ),
    "token_batch": decode_pb2.TokenBatch(
        decode_id="decode-1",
        incarnation=9,
        deltas=[
            decode_pb2.TokenDelta(
                request_id="r1",
                choice_index=1,
                seq=4,
                token_ids=[11, 300, 70_000],
                logprobs=[
                    decode_pb2.TokenLogprobs(
                        token_id=11, logprob=-0.5, top_ids=[11, 12], top_logprobs=[-0.5, -1.5]
                    )
                ],
                finish_reason=decode_pb2.FINISH_REASON_LENGTH,
                num_prompt_tokens=2,
                num_cached_tokens=1,
                error=ERROR,
            )
        ],
    ),
    "resend_request": decode_pb2.ResendRequest(request_id="r1", choice_index=1, from_seq=4),
    "encode_request": recipe_pb2.EncodeRequest(
        request_id="r1",
        protocol=recipe_pb2.PROTOCOL_CHAT_COMPLETIONS,
        body=tensor_pb2.Payload(inline=b"{}"),
        tenant="t",
        gateway_id="gateway-1",
        deadline_unix_s=5.0,
        resource="resp_1",
    ),
    "encode_reply_answer": recipe_pb2.EncodeReply(
        answer=recipe_pb2.DirectAnswer(
            http_status=200, body=tensor_pb2.Payload(inline=b'{"input_tokens":3}')
        )
    ),
    "protocol_error": recipe_pb2.ProtocolError(
        http_status=400, body_json=b"{}", retry_after_s=1, info=ERROR, sse_frames=b"data: {}\n\n"
    ),
    "event_batch": recipe_pb2.EventBatch(
        streams=[
            recipe_pb2.StreamEvents(
                request_id="r1",
                seq=2,
                data=[b"{}", b"[]"],
                done=True,
                usage=recipe_pb2.Usage(
                    prompt_tokens=2, cached_tokens=1, completion_tokens=3, reasoning_tokens=2
                ),
                finish_reasons=["stop"],
            )
        ]
    ),
    "place_request": router_pb2.PlaceRequest(
        request_id="r1",
        choice_index=1,
        num_context_tokens=130,
        max_new_tokens=16,
        excluded_ids=["decode-2"],
    ),
    "cancel_request": router_pb2.CancelRequest(request_id="r1", reason="client_gone"),
    "match_reply": kvmeta_pb2.MatchReply(
        match=kvmeta_pb2.Match(
            num_matched_blocks=3,
            lease_id="lease",
            lease_expires_unix_s=60.5,
            miss_reason="expired",
            num_exact_blocks=2,
        )
    ),
    "match_request": kvmeta_pb2.MatchRequest(
        request_id="r1",
        model_fingerprint="f",
        packed_block_keys=KEY * 2,
        exact_only=True,
        content_key=KEY,
        lease_id="0123456789abcdef",
    ),
    "drop_blocks": kvmeta_pb2.DropBlocksRequest(model_fingerprint="f", packed_keys=KEY * 2),
    "hold_blocks": kvmeta_pb2.HoldBlocksRequest(
        model_fingerprint="f", packed_keys=KEY * 2, until_unix_s=1.8e9
    ),
    "block_events": kvmeta_pb2.BlockEvents(
        publisher_id="kvmeta-1",
        incarnation=9,
        seq=10,
        records=bytes(range(56)),
        contents=KEY * 2,
        clear=kvmeta_pb2.ClearBlocksRequest(
            model_fingerprint="f", tenant="tenant", has_tenant=True
        ),
    ),
    "register_blocks": kvmeta_pb2.RegisterBlocksRequest(
        model_fingerprint="f",
        blocks=[
            kvmeta_pb2.BlockRecord(
                key=KEY,
                size_bytes=2**20,
                traffic_class=generation_pb2.TRAFFIC_CLASS_CHAT,
                store="local",
                provenance=kvmeta_pb2.PROVENANCE_REPLAYED,
                tenant="tenant",
                position=7,
                lifetime_s=60.5,
                content_key=KEY,
            )
        ],
    ),
    "compile_reply": grammar_pb2.CompileReply(
        compiled=grammar_pb2.Compiled(grammar=TICKET, cache_hit=True, compile_s=0.25)
    ),
    "vision_encode_request": vision_pb2.VisionEncodeRequest(
        request_id="r1", model="m", image=tensor_pb2.Payload(inline=b"png")
    ),
    "load_report": load_pb2.LoadReport(
        service="decode",
        instance_id="decode-1",
        incarnation=9,
        seq=10,
        sent_unix_s=1.5,
        draining=True,
        num_active_requests=2,
        num_held_leases=1,
        num_used_pages=3,
        num_total_pages=1024,
        decode=load_pb2.DecodeLoad(
            num_running=2, max_running=64, kv_tokens=300, num_reserved_pages=4, step_s=0.025
        ),
    ),
    "scale_decision": scaler_pb2.ScaleDecision(
        incarnation=9,
        seq=1,
        decided_unix_s=1.5,
        targets=[
            scaler_pb2.ServiceTarget(
                service="prefill", num_running=1, num_desired=2, reason="missed tokens"
            )
        ],
    ),
}


def write_all(directory: Path) -> None:
    """Write each message's bytes as hex, 32 bytes a line."""
    directory.mkdir(exist_ok=True)
    for name, message in GOLDEN.items():
        text = message.SerializeToString(deterministic=True).hex()
        lines = [text[i : i + 64] for i in range(0, len(text), 64)]
        (directory / f"{name}.hex").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_all(Path(__file__).parent / "golden")
