"""The service's end of the sandbox: one job a compilation, bounded in time, memory and number."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress

from rorqual_runtime.errors import InvalidRequest, NoCapacity, Unavailable, Unsupported

from rorqual_grammar.constraint import PARAM_BY_KIND, Constraint
from rorqual_grammar.sandbox import MAX_REASON_BYTES, NUMBER_BYTES, READY, Outcome, SandboxConfig
from rorqual_grammar.settings import GrammarSettings

_START_TIMEOUT_S = 120.0
_KILL_GRACE_S = 1.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class _NotBegun(Exception):
    """The sandbox was gone before it had a child for the job."""


class CompilerPool:
    """Runs compilations in killable processes. Start before use, close after."""

    def __init__(self, settings: GrammarSettings) -> None:
        self._settings = settings
        self._config = SandboxConfig(
            str(settings.model_dir), settings.compile_timeout_s, settings.compile_memory_bytes
        )
        self._turns = asyncio.Semaphore(settings.max_concurrent)
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self.num_pending = 0
        """Compilations that run or wait for their turn."""

    @property
    def pid(self) -> int | None:
        """Process id of the sandbox; None while it is not running."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the sandbox and wait until it has loaded the vocabulary.

        Raises: Unavailable when it ends early or takes longer than two minutes.
        """
        ours, theirs = socket.socketpair()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rorqual_grammar.sandbox"),
            *(str(theirs.fileno()), self._config.to_json()),
            pass_fds=[theirs.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD},
        )
        theirs.close()
        ours.setblocking(False)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                said = await asyncio.get_running_loop().sock_recv(ours, MAX_REASON_BYTES)
        except TimeoutError:
            said = b""
        if said != READY:
            ours.close()
            await self._stop_process()
            reason = said.decode("utf-8", "replace") or "its log may say why"
            raise Unavailable(f"the grammar compiler did not start: {reason}")
        self._control = ours

    async def close(self) -> None:
        """End the sandbox; compilations under way end with it or at their time limit."""
        self._close_control()
        await self._stop_process()

    async def compile(self, constraint: Constraint) -> bytes:
        """Serialised grammar of a constraint. Cancelling the call kills the compilation.

        Raises: InvalidRequest (wrong, or over a limit that the message names), Unsupported,
        NoCapacity (too many wait), Unavailable (the sandbox is gone and did not come back).
        """
        limit = self._settings.max_concurrent + self._settings.max_waiting
        if self.num_pending >= limit:
            raise NoCapacity(f"{limit} grammar compilations are waiting already")
        self.num_pending += 1
        try:
            async with self._turns:
                return await self._compile_now(constraint)
        finally:
            self.num_pending -= 1

    async def _compile_now(self, constraint: Constraint) -> bytes:
        """A job that a dying sandbox took and never began is given to the next one, once."""
        for _ in range(2):
            used = self._control
            with suppress(_NotBegun):
                return await self._compile_once(constraint)
            if self._control is used:  # else somebody has opened another one already
                self._close_control()
        raise Unavailable("the grammar compiler ends before it begins")

    async def _compile_once(self, constraint: Constraint) -> bytes:
        connection = await self._open_job()
        reader, writer = await asyncio.open_connection(sock=connection)
        started_s = time.monotonic()
        pidfd: int | None = None
        try:
            async with asyncio.timeout(self._settings.compile_timeout_s + _KILL_GRACE_S):
                writer.write(_job(constraint))
                with suppress(OSError):  # of a peer that is gone; what it did not say tells that
                    writer.write_eof()
                pidfd = _open_pidfd(await _read_child(reader))
                outcome = Outcome(await reader.readexactly(1))
                body = await self._read_body(reader, constraint)
        except (asyncio.IncompleteReadError, TimeoutError, ConnectionError) as error:
            raise self._limit_error(constraint, time.monotonic() - started_s) from error
        finally:
            writer.close()
            _kill(pidfd)
        return self._result(constraint, outcome, body)

    async def _open_job(self) -> socket.socket:
        """A connection to a new child; a sandbox that died is started again once."""
        for _ in range(2):
            if self._control is None:
                await self._restart()
            ours, theirs = socket.socketpair()
            with theirs, suppress(OSError):
                socket.send_fds(self._open_control(), [b"j"], [theirs.fileno()])
                return ours
            ours.close()
            self._close_control()
        raise Unavailable("the grammar compiler is not running")

    async def _restart(self) -> None:
        async with self._starting:
            if self._control is None:
                await self._stop_process()
                await self.start()

    def _open_control(self) -> socket.socket:
        if self._control is None:
            raise OSError("closed")
        return self._control

    async def _read_body(self, reader: asyncio.StreamReader, constraint: Constraint) -> bytes:
        size, limit = await _read_number(reader), self._settings.max_compiled_bytes
        if size > limit:
            raise _rejected(
                constraint, f"the compiled grammar of {size} bytes exceeds the limit of {limit}"
            )
        return await reader.readexactly(size)

    def _limit_error(self, constraint: Constraint, elapsed_s: float) -> InvalidRequest:
        if elapsed_s >= 0.95 * self._settings.compile_timeout_s:
            limit = f"{self._settings.compile_timeout_s:g} s"
            return _rejected(constraint, f"compiling it took longer than the limit of {limit}")
        return self._memory_error(constraint)

    def _memory_error(self, constraint: Constraint) -> InvalidRequest:
        limit = self._settings.compile_memory_bytes >> 20
        return _rejected(constraint, f"compiling it broke the limit of {limit} MiB of memory")

    def _result(self, constraint: Constraint, outcome: Outcome, body: bytes) -> bytes:
        if outcome is Outcome.COMPILED:
            return body
        if outcome is Outcome.OUT_OF_MEMORY:
            raise self._memory_error(constraint)
        reason = json.loads(body)
        text, language = reason["text"], reason["language"] or constraint.kind.replace("_", " ")
        param = reason["param"] or PARAM_BY_KIND[constraint.kind]
        if outcome is Outcome.UNENFORCEABLE:
            raise Unsupported(f"the answer could break this {language}: {text}", param=param)
        raise InvalidRequest(f"invalid {language}: {text}", param)

    def _close_control(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    async def _stop_process(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_GRACE_S):
                await process.wait()
                return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _job(constraint: Constraint) -> bytes:
    return json.dumps({"kind": constraint.kind, "source": constraint.source}).encode()


def _rejected(constraint: Constraint, text: str) -> InvalidRequest:
    kind = constraint.kind.replace("_", " ")
    return InvalidRequest(f"invalid {kind}: {text}", PARAM_BY_KIND[constraint.kind])


async def _read_number(reader: asyncio.StreamReader) -> int:
    return int.from_bytes(await reader.readexactly(NUMBER_BYTES), "big")


async def _read_child(reader: asyncio.StreamReader) -> int:
    """The compilation's process id. Raises: _NotBegun."""
    try:
        return await _read_number(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        raise _NotBegun from None


def _open_pidfd(pid: int) -> int | None:
    """A handle that can't hit a recycled pid; None when the child has ended already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _kill(pidfd: int | None) -> None:
    if pidfd is None:
        return
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
