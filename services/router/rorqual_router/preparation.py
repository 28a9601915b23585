"""What a submission needs before it is a job: keys, grammars, prefix match, images."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rorqual_policy import BLOCK_TOKENS, block_keys
from rorqual_policy.blocks import content_key
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.errors import ServingError
from rorqual_runtime.logs import get_logger
from rorqual_runtime.patience import AGAIN_S
from rorqual_runtime.payload import TokenIds, get_token_ids
from rorqual_runtime.prompt_work import over_prompt
from rorqual_runtime.tensors import TensorPlane
from rorqual_runtime.waiting import uninterrupted

from rorqual_router.convert import (
    CompileReply,
    Generation,
    MatchReply,
    PrefixMatch,
    PromptKeys,
    ReleaseLeaseRequest,
    Submission,
    TensorTicket,
    compile_request_to_wire,
    match_from_wire,
    match_request_to_wire,
)
from rorqual_router.fleet import Fleet
from rorqual_router.images import ImageEncoder
from rorqual_router.settings import RouterSettings

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """grammars: one a choice, None without constraint; image_embeddings: see JobParts."""

    grammars: Sequence[TensorTicket | None]
    match: PrefixMatch
    image_embeddings: tuple[TensorTicket, ...]


@dataclass(slots=True)
class MatchTimes:
    """Of all questions to kvmeta since start."""

    num_asked: int = 0
    total_s: float = 0.0


class Preparation:
    """Asks kvmeta, grammar and vision; all waits are bounded by settings."""

    def __init__(
        self, bus: Bus, tensors: TensorPlane, fleet: Fleet, settings: RouterSettings
    ) -> None:
        self._bus = bus
        self._tensors = tensors
        self._fleet = fleet
        self._settings = settings
        self._images = ImageEncoder(bus, fleet, settings)
        self._manifest_fingerprint = settings.manifest_fingerprint()
        self.match_times = MatchTimes()

    async def run(self, submission: Submission) -> Prepared:
        """Grammars, prefix match and embeddings of images that it does not cover, side by side.

        Raises: what reading the prompt, a grammar or an image failed with. Whatever ends it, the
            lease of the match is given back.
        """
        keys = await self._hash_prompt(submission)
        matching = asyncio.create_task(self._match(submission.request_id, keys))
        seeing = asyncio.create_task(self._see(submission, matching))
        try:
            grammars = await self._compile_all(submission)
            return Prepared(grammars, await asyncio.shield(matching), await seeing)
        except BaseException:
            await uninterrupted(self._undo(matching, seeing))
            raise

    async def _undo(
        self, matching: asyncio.Task[PrefixMatch], seeing: asyncio.Task[tuple[TensorTicket, ...]]
    ) -> None:
        seeing.cancel()
        await asyncio.gather(seeing, return_exceptions=True)
        await self.release(await matching)

    async def _see(
        self, submission: Submission, matching: asyncio.Task[PrefixMatch]
    ) -> tuple[TensorTicket, ...]:
        """Embeddings of the images that may have to be computed.

        The end of a match counts as missing: its rows are run again where windows are gone.
        """
        if not submission.images:
            return ()
        match = await asyncio.shield(matching)
        replayed_tokens = max(BLOCK_TOKENS, self._fleet.num_replayed_tokens())
        return await self._images.encode_all(
            submission.request_id,
            submission.generations[0].model,
            submission.images,
            covered_tokens=match.num_blocks * BLOCK_TOKENS - replayed_tokens,
        )

    async def _compile_all(self, submission: Submission) -> list[TensorTicket | None]:
        """One grammar a choice. Raises: what the first one that failed failed with."""
        if not submission.has_constraint:
            return [None] * len(submission.generations)
        outcomes = await asyncio.gather(
            *(self._compile(generation) for generation in submission.generations),
            return_exceptions=True,
        )
        grammars: list[TensorTicket | None] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            grammars.append(outcome)
        return grammars

    async def _compile(self, generation: Generation) -> TensorTicket | None:
        if not generation.HasField("constraint"):
            return None
        reply = await self._bus.request(
            subjects.grammar_compile(),
            compile_request_to_wire(generation),
            CompileReply,
            timeout_s=self._settings.compile_timeout_s,
            absent_timeout_s=self._settings.compile_absent_s,
            outlasts_outages=True,
            again_s=AGAIN_S,
        )
        return reply.compiled.grammar

    async def _match(self, request_id: str, keys: PromptKeys) -> PrefixMatch:
        """Longest stored prefix; nothing when kvmeta is slow, away or wrong: it is only a hint."""
        if not keys.blocks:
            return PrefixMatch()
        began_s, lease_id = time.perf_counter(), secrets.token_hex(8)
        request = match_request_to_wire(
            request_id, lease_id, keys, exact_only=self._settings.exact_prefixes
        )
        try:
            reply = await self._bus.request(
                subjects.kvmeta_match(),
                request,
                MatchReply,
                timeout_s=self._settings.match_timeout_s,
                absent_timeout_s=self._settings.match_absent_s,
            )
        except ServingError as error:
            log.debug("no prefix match", extra={"reason": error.message})
            # it may have been answered too late; nobody waits for that, where the bus is away
            self._bus.connection.background(self._release(lease_id))
            return PrefixMatch(miss_reason="unavailable")
        finally:
            self.match_times.num_asked += 1
            self.match_times.total_s += time.perf_counter() - began_s
        return match_from_wire(reply, len(keys.blocks))

    async def release(self, match: PrefixMatch) -> None:
        """Give the lease of a match back."""
        if match.lease_id:
            await self._release(match.lease_id)

    async def _release(self, lease_id: str) -> None:
        request = ReleaseLeaseRequest(lease_id=lease_id)
        try:
            await self._bus.publish(subjects.kvmeta_release(), request)
        except ServingError as error:  # it expires by itself
            log.debug("a lease is not given back", extra={"reason": error.message})

    async def _hash_prompt(self, submission: Submission) -> PromptKeys:
        """What the prompt's blocks go by. The prompt stays readable for prefill."""
        num_tokens = submission.num_prompt_tokens
        prompt = await get_token_ids(self._tensors, submission.prompt, num_tokens)
        fingerprint = self._fleet.model_fingerprint() or self._manifest_fingerprint
        work = partial(_hash, prompt, fingerprint, submission)
        return await over_prompt(num_tokens, work)


def _hash(prompt: TokenIds, fingerprint: str, submission: Submission) -> PromptKeys:
    images = submission.image_spans
    blocks = block_keys(
        prompt,  # type: ignore[arg-type]
        fingerprint=fingerprint,
        namespace=submission.cache_namespace,
        images=images,
    )
    content = content_key(
        prompt,  # type: ignore[arg-type]
        fingerprint=fingerprint,
        images=images,
    )
    return PromptKeys(fingerprint, blocks, content)
