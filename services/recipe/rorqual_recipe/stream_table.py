"""All requests of this instance that await tokens."""

from collections.abc import Iterator

from rorqual_recipe.streams import RequestStream


class StreamTable:
    """All streams of this instance, each with an end of life."""

    def __init__(self) -> None:
        self._streams: dict[str, RequestStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[RequestStream]:
        return iter(list(self._streams.values()))

    def add(self, stream: RequestStream) -> None:
        """Keep a stream under its request id; an older one of that id is replaced."""
        self._streams[stream.request_id] = stream

    def get(self, request_id: str) -> RequestStream | None:
        """The stream, or None when it has ended or never was."""
        return self._streams.get(request_id)

    def remove(self, request_id: str) -> RequestStream | None:
        """Forget a stream; the caller lets go of what it held."""
        return self._streams.pop(request_id, None)

    def expired(self, now_s: float) -> list[RequestStream]:
        """Streams whose time is over."""
        return [stream for stream in self if stream.expires_s <= now_s]
