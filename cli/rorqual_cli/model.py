"""The model directory a fleet serves, prepared when it is not there yet."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rorqual_engine.errors import EngineError
from rorqual_engine.manifest import check_hf_directory, read_manifest, verify

from rorqual_cli.problems import CliError
from rorqual_cli.processes import end_with_parent

DEFAULT_MODEL = "smollm2-135m-instruct"
SHIPPED_MODELS = Path(__file__).resolve().parents[2] / "models"
"""Model directories of the checkout, by name."""
_ERROR_PREFIX = "error: "
_END_GRACE_S = 3.0
Say = Callable[[str], None]


async def ensure_model(model: str, home: Path, say: Say) -> Path:
    """Directory of `model`: a directory as it is or one that is shipped, else prepared under
    home/models.

    The work is done in a process of its own: it needs torch, and this one shall start at once.
    Raises: CliError with the preparation's last line.
    """
    directory = existing_directory(model)
    if directory is not None:
        return _checked(directory)
    target = prepared_directory(model, home)
    if _is_ready(target):
        say(f"model {target.name} is ready in {target}")
        return target
    await _prepare(model, target, say)
    return target


def existing_directory(model: str) -> Path | None:
    """Where a directory of that path lies, or a shipped model of that name."""
    for directory in (Path(model), SHIPPED_MODELS / model):
        if directory.is_dir():
            return directory.resolve()
    return None


def prepared_directory(model: str, home: Path) -> Path:
    """Where `model` lies once it is prepared; another place for each content of a GGUF file."""
    path = Path(model)
    name = path.stem.lower()
    if path.is_file():
        stat = path.stat()
        identity = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
        name += "-" + hashlib.blake2b(identity.encode(), digest_size=4).hexdigest()
    return home / "models" / name


def _checked(directory: Path) -> Path:
    try:
        return check_hf_directory(directory)
    except EngineError as error:
        raise CliError(
            str(error), "--model takes a known id, a GGUF file or a Hugging Face directory"
        ) from error


def _is_ready(target: Path) -> bool:
    """Sizes and times as at preparation; `rorqual model prepare --verify` hashes everything."""
    try:
        manifest = read_manifest(target) if target.is_dir() else None
        if manifest is None:
            return False
        verify(target, manifest, full=False)
    except (EngineError, OSError):
        return False
    return True


async def _prepare(model: str, target: Path, say: Say, *extra: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", "-m", "rorqual_engine.prepare"),
        *("--model", model, "--out", str(target), *extra),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    try:
        last = await _relay_lines(process, say)
        code = await process.wait()
    finally:
        await _end_group(process)
    if code != 0:
        reason = last.removeprefix(_ERROR_PREFIX)
        raise CliError(f"model {model} can't be prepared: {reason}")


async def _relay_lines(process: asyncio.subprocess.Process, say: Say) -> str:
    """Says every line but the error that ends it; returns the last one."""
    assert process.stdout is not None
    last = ""
    async for line in process.stdout:
        last = line.decode("utf-8", "replace").rstrip() or last
        if not last.startswith(_ERROR_PREFIX):
            say(last)
    return last


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Ends it with the download it may run; it gets a moment to take back half a model."""
    if process.returncode is not None:
        return
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_GRACE_S):
                await process.wait()
                return


async def prepare(model: str, home: Path, say: Say, *, verify_all: bool) -> Path:
    """`rorqual model prepare`. Raises: CliError."""
    if not verify_all or existing_directory(model) is not None:
        return await ensure_model(model, home, say)
    target = prepared_directory(model, home)
    await _prepare(model, target, say, "--verify")
    return target
