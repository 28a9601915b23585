"""The model directory a fleet serves, prepared when it is not there yet."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from rorqual_engine.errors import EngineError
from rorqual_engine.manifest import read_manifest, verify

from rorqual_cli.problems import CliError

DEFAULT_MODEL = "smollm2-135m-instruct"
Say = Callable[[str], None]


async def ensure_model(model: str, home: Path, say: Say) -> Path:
    """Directory of `model`: a directory as it is, else prepared under home/models.

    The work is done in a process of its own: it needs torch, and this one shall start at once.
    Raises: CliError with the preparation's last line.
    """
    directory = Path(model)
    if directory.is_dir():
        return directory.resolve()
    target = home / "models" / Path(model).stem.lower()
    if _is_ready(target):
        say(f"model {target.name} is ready in {target}")
        return target
    await _prepare(model, target, say)
    return target


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
    )
    assert process.stdout is not None
    last = ""
    try:
        async for line in process.stdout:
            last = line.decode("utf-8", "replace").rstrip() or last
            say(last)
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise CliError(f"model {model} can't be prepared: {last}")


async def prepare(model: str, home: Path, say: Say, *, verify_all: bool) -> Path:
    """`rorqual model prepare`. Raises: CliError."""
    if not verify_all or Path(model).is_dir():
        return await ensure_model(model, home, say)
    target = home / "models" / Path(model).stem.lower()
    await _prepare(model, target, say, "--verify")
    return target
