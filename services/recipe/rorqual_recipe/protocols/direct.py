"""Requests that recipe answers by itself, and what protocols with a memory may use."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from rorqual_runtime.errors import ServingError

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.images import PrepareImages
from rorqual_recipe.model import ServedModel
from rorqual_recipe.problems import Problem
from rorqual_recipe.protocols.base import EventWriter, ParseLimits, RenderedError
from rorqual_recipe.response_memory import ResponseMemory

Result = TypeVar("Result")


class Compute(Protocol):
    """Runs CPU work where it does not stop other streams."""

    async def __call__(self, work: Callable[[], Result], num_bytes: int) -> Result:
        """The work's result: here and now when small, else on a thread.

        Raises: NoCapacity when too much big work waits already.
        """
        ...


@dataclass(frozen=True, slots=True)
class DirectServices:
    """What a protocol may use besides the request. memory: None when no responses are kept.

    prepare_images: asks vision; None = images count as one token each.
    """

    model: ServedModel
    limits: ParseLimits
    compute: Compute
    memory: ResponseMemory | None = None
    prepare_images: PrepareImages | None = None


@runtime_checkable
class DirectProtocol(Protocol):
    """A request whose whole answer is made here."""

    async def answer(
        self, body: bytes, resource: str, tenant: str, services: DirectServices
    ) -> tuple[int, bytes]:
        """HTTP status and JSON body.

        body: the client's JSON; for GET and DELETE the query as an object of strings.
        resource: the id in the path, "" where there is none.
        Raises: RequestRefused with every problem found; ServingError.
        """
        ...

    def render_refusal(self, problems: Sequence[Problem]) -> RenderedError:
        """A refused request's error."""
        ...

    def render_error(self, error: ServingError) -> RenderedError:
        """An error from elsewhere."""
        ...


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Whose request it is, and what it may use."""

    request_id: str
    tenant: str
    services: DirectServices


@runtime_checkable
class RemembersAnswers(Protocol):
    """The optional side of a ProtocolAdapter whose requests build on earlier answers."""

    async def prepare(self, body: bytes, context: RequestContext) -> Any:
        """What `parse` needs from earlier requests; it is handed on as `ParseLimits.prior`.

        Its `num_bytes`, if it has that, is how much has to be read beside the body.
        Raises: RequestRefused; ServingError.
        """
        ...

    def completed(
        self, writer: EventWriter, parsed: ParsedRequest, context: RequestContext
    ) -> Awaitable[None] | None:
        """What has to be done before the client sees the end of its answer; None = nothing.

        The writer has written everything. The wait is bounded; a failure is logged and does not
        change the answer.
        """
        ...
