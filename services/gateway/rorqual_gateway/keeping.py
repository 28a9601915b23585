"""What one request does so that its client can go on with the answer, or have it again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rorqual_runtime.errors import InvalidRequest, NotFound, Unavailable

from rorqual_gateway.convert import EncodedRequest
from rorqual_gateway.event_marks import EventMarker, Mark, parse_mark
from rorqual_gateway.kept_answers import KeptAnswer, KeptAnswers, name_of
from rorqual_gateway.sinks import Event, EventSink

_BEGINNING = Mark()


class Keeping:
    """One request under an `Idempotency-Key`.

    answer: what is known of it. is_new: nobody has asked before. mark: where its client is.
    """

    def __init__(
        self, store: KeptAnswers, name: str, answer: KeptAnswer, mark: Mark, *, is_new: bool
    ) -> None:
        self._store = store
        self._name = name
        self.answer = answer
        self.is_new = is_new
        self._mark = mark
        self._marker = EventMarker(mark)
        self._frames: list[bytes] | None = [] if mark == _BEGINNING else None
        self._num_bytes = 0

    @property
    def is_under_way(self) -> bool:
        """Whether somebody else could go on with it."""
        return bool(self.answer.recipe_id)

    @property
    def can_be_taken_over(self) -> bool:
        """Not while frames are left out by their count: another instance may cut others."""
        return self._marker.is_exact

    def place(self, sink: EventSink) -> None:
        """Have the sink await what the client has not got."""
        if not self.is_new:
            mark, take_over = self._mark, self.answer.take_over
            sink.go_on_from(mark.next_seq, mark.position, take_over)

    def rest(self) -> bytes:
        """Of an answer that has ended: what its client has not got. Raises: NotFound."""
        body = self.answer.body or b""
        if self._mark == _BEGINNING:
            return body
        _, found, behind = body.partition(b"id: " + str(self._mark).encode() + b"\n")
        if not found:
            raise NotFound("no event of this answer has the id in Last-Event-ID")
        return behind.partition(b"\n\n")[2]

    def frames(self, events: Sequence[Event]) -> list[bytes]:
        """What the client gets of these events, each frame with its id."""
        frames = self._marker.frames(events)
        if self._frames is not None:
            self._frames += frames
            self._num_bytes += sum(map(len, frames))
            if self._num_bytes > self._store.max_bytes:
                self._frames = None
        return frames

    async def begun(self, encoded: EncodedRequest) -> None:
        """The generations are submitted: from now on others can go on."""
        self.answer = self.answer.under_way(encoded)
        await self._store.keep(self._name, self.answer)

    async def moved(self, recipe_id: str, take_over: int) -> None:
        """Another instance of recipe goes on."""
        self.answer = replace(self.answer, recipe_id=recipe_id, take_over=take_over)
        await self._store.keep(self._name, self.answer)

    async def left(self, charged_tokens: int) -> None:
        """Nobody listens here any more. charged_tokens: of this answer, counted against its
        client's quota."""
        self.answer = replace(self.answer, charged_tokens=charged_tokens)
        await self._store.keep(self._name, self.answer)

    async def count_charged(self) -> None:
        """Learn what others have counted of this answer meanwhile."""
        charged = await self._store.charged_tokens(self._name, self.answer.request_id)
        charged = max(charged, self.answer.charged_tokens)
        self.answer = replace(self.answer, charged_tokens=charged)

    async def completed(self, body: bytes | None = None) -> None:
        """The answer has ended. body: of one in one piece; else the frames that were sent."""
        if body is None and self._frames is not None:
            body = b"".join(self._frames)
        if body is not None and len(body) <= self._store.max_bytes:
            self.answer = replace(self.answer, body=body)
            await self._store.keep(self._name, self.answer)

    async def release(self) -> None:
        """It has failed: the next request under its key begins anew."""
        await self._store.release(self._name, self.answer.request_id)


async def look_up(
    store: KeptAnswers, headers: Mapping[str, str], tenant: str, wanted: KeptAnswer
) -> Keeping | None:
    """The answer a request gets: the one it `wanted`, or one asked for before under its key.

    None: it has no key, or nothing can be kept now.
    Raises: KeyReused; InvalidRequest, NotFound and Unavailable for one that can't be gone on with.
    """
    key, last_id = headers.get("idempotency-key"), headers.get("last-event-id")
    if not key:
        if last_id:
            raise InvalidRequest("Last-Event-ID needs the Idempotency-Key of its request")
        return None
    mark = parse_mark(last_id) if last_id else _BEGINNING
    name = name_of(tenant, key)
    found = await store.claim(name, wanted)
    if found is None:
        if last_id:
            raise Unavailable("answers that are under way can't be looked up now")
        return None
    is_new = found.request_id == wanted.request_id
    if is_new and last_id:
        await store.release(name, wanted.request_id)
        raise NotFound("nothing is under way or kept under this Idempotency-Key")
    if mark != _BEGINNING and not found.is_stream:
        raise InvalidRequest("Last-Event-ID: this answer is not streamed")
    return Keeping(store, name, found, mark, is_new=is_new)
