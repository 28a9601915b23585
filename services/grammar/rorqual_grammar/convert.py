"""Wire <-> domain: the only importer of generated messages in this service."""

from __future__ import annotations

from rorqual_proto.v1 import generation_pb2, grammar_pb2, load_pb2, router_pb2, tensor_pb2
from rorqual_runtime.errors import InvalidRequest, Unsupported

from rorqual_grammar.constraint import PARAM_BY_KIND, Constraint, ConstraintKind

CancelMessage = router_pb2.CancelRequest
CompileMessage = grammar_pb2.CompileRequest
CompileReplyMessage = grammar_pb2.CompileReply
LoadMessage = load_pb2.LoadReport
Ticket = tensor_pb2.TensorTicket

_KINDS = {
    generation_pb2.CONSTRAINT_KIND_JSON_SCHEMA: ConstraintKind.JSON_SCHEMA,
    generation_pb2.CONSTRAINT_KIND_JSON_OBJECT: ConstraintKind.JSON_OBJECT,
    generation_pb2.CONSTRAINT_KIND_REGEX: ConstraintKind.REGEX,
    generation_pb2.CONSTRAINT_KIND_EBNF: ConstraintKind.EBNF,
    generation_pb2.CONSTRAINT_KIND_STRUCTURAL_TAG: ConstraintKind.STRUCTURAL_TAG,
}


def constraint_from_wire(wire: generation_pb2.Constraint, *, max_source_bytes: int) -> Constraint:
    """Raises: InvalidRequest for a kind nobody knows, an empty source or one over the limit."""
    kind = _KINDS.get(wire.kind)
    if kind is None:
        param = wire.param or "response_format.type"
        raise InvalidRequest(f"unknown kind of constraint ({wire.kind})", param)
    if kind is ConstraintKind.JSON_OBJECT:
        return Constraint(kind, "", wire.param)
    param, size = wire.param or PARAM_BY_KIND[kind], len(wire.source.encode())
    if size == 0:
        raise InvalidRequest("the constraint is empty", param)
    if size > max_source_bytes:
        raise InvalidRequest(
            f"the constraint of {size} bytes exceeds the limit of {max_source_bytes} bytes", param
        )
    return Constraint(kind, wire.source, wire.param)


def blame(
    error: InvalidRequest | Unsupported, constraint: Constraint
) -> InvalidRequest | Unsupported:
    """The error with the field of this very caller; one that knows its field better keeps it."""
    if not constraint.param or error.param != PARAM_BY_KIND[constraint.kind]:
        return error
    return type(error)(error.message, param=constraint.param)


def compiled_to_wire(ticket: Ticket, *, cache_hit: bool, compile_s: float) -> CompileReplyMessage:
    """The reply that points at a published grammar."""
    compiled = grammar_pb2.Compiled(grammar=ticket, cache_hit=cache_hit, compile_s=compile_s)
    return grammar_pb2.CompileReply(compiled=compiled)


def fill_load(report: LoadMessage, *, num_active_requests: int) -> None:
    """Load of this service. Cached grammars belong to no request and count as no lease."""
    report.num_active_requests = num_active_requests
    report.num_held_leases = 0
