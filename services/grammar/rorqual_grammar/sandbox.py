"""A process that forks one killable child a compilation.

`python -m rorqual_grammar.sandbox FD CONFIG` loads the vocabulary once, then reads file descriptors
from its control socket FD: each is a connection to one job, served by a forked child under a wall
clock and a memory limit of the kernel. Whatever a constraint does to the compiler, it does to that
child alone. The process ends when the control socket closes.

Job wire: request = JSON {kind, source} until EOF. Reply = pid (8 bytes), then, when the child lived
to tell, outcome (1 byte), size (8 bytes), body: the grammar, or what is wrong as JSON {text, param,
language}. Numbers are big endian.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xgrammar

    from rorqual_grammar.rejection import BadConstraint

READY = b"R"
MAX_REASON_BYTES = 4096
NUMBER_BYTES = 8


class Outcome(Enum):
    """First byte of a reply."""

    COMPILED = b"c"
    INVALID = b"i"
    UNENFORCEABLE = b"u"
    OUT_OF_MEMORY = b"m"


@dataclass(frozen=True)
class SandboxConfig:
    """What the sandbox must know before it reads a job."""

    model_dir: str
    timeout_s: float
    memory_bytes: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    """Loads the vocabulary, says READY or why not on the control socket, serves until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which closes us
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    control = socket.socket(fileno=int(sys.argv[1]))
    config = SandboxConfig(**json.loads(sys.argv[2]))
    from rorqual_grammar.compiler import load_tokenizer_info
    from rorqual_grammar.vocabulary import VocabularyError

    try:
        tokenizer = load_tokenizer_info(Path(config.model_dir))
    except VocabularyError as error:
        control.sendall(str(error).encode())
        sys.exit(1)
    control.sendall(READY)
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        if os.fork() == 0:
            _run_job(socket.socket(fileno=fds[0]), config, tokenizer)
        os.close(fds[0])


def _run_job(
    connection: socket.socket, config: SandboxConfig, tokenizer: xgrammar.TokenizerInfo
) -> None:
    """Serves one job in the forked child and never returns."""
    code = 1
    try:
        _limit_process(config)
        connection.sendall(os.getpid().to_bytes(NUMBER_BYTES, "big"))
        outcome, body = _outcome(connection, tokenizer)
        connection.sendall(outcome.value + len(body).to_bytes(NUMBER_BYTES, "big"))
        connection.sendall(body)
        code = 0
    finally:
        os._exit(code)


def _limit_process(config: SandboxConfig) -> None:
    """Wall clock by SIGALRM with its default action, so that it works inside C++ code too."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, config.timeout_s)
    limit = _data_bytes() + config.memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(10)  # serving goes before compiling
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, sys.stderr.fileno())  # the compiler prints to stderr, where logs are JSON


def _data_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    raise OSError("no VmData in /proc/self/status")


def _outcome(connection: socket.socket, tokenizer: xgrammar.TokenizerInfo) -> tuple[Outcome, bytes]:
    from rorqual_grammar.compiler import compile_constraint
    from rorqual_grammar.constraint import Constraint, ConstraintKind
    from rorqual_grammar.rejection import BadConstraint, UnenforceableConstraint

    with connection.makefile("rb") as file:
        request = json.loads(file.read())
    constraint = Constraint(ConstraintKind(request["kind"]), request["source"])
    try:
        return Outcome.COMPILED, compile_constraint(constraint, tokenizer)
    except BadConstraint as error:
        is_valid = isinstance(error, UnenforceableConstraint)
        return Outcome.UNENFORCEABLE if is_valid else Outcome.INVALID, _reason(error)
    except MemoryError:
        return Outcome.OUT_OF_MEMORY, b""


def _reason(error: BadConstraint) -> bytes:
    fields = {"text": error.text, "param": error.param, "language": error.language}
    return json.dumps(fields).encode()


if __name__ == "__main__":
    main()
