"""Measured step times of a model on a machine: one JSON file each, under home/calibration.

`rorqual calibrate` writes it, and so does a prefill instance, or a decode instance with a drafter,
that finds no part for it; prefill, decode and router read it. What was not measured is None.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

_FOLDER = "calibration"
_CPU_FACTS = Path("/proc/cpuinfo")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FitQuality(_Part):
    """How far fitted times are off the measured ones they were fitted to, as a share of those."""

    median: float = Field(ge=0)
    p90: float = Field(ge=0)
    worst: float = Field(ge=0)
    num_samples: int = Field(ge=1)


class PrefillTimes(_Part):
    """A step over chunks of q tokens behind c tokens of context takes
    a0_s + sum of q * (a1_s + a2_s * c + a3_s * q) seconds."""

    a0_s: float = Field(ge=0)
    a1_s: float = Field(gt=0)
    a2_s: float = Field(ge=0)
    a3_s: float = Field(ge=0)
    error: FitQuality

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """In the order of `rorqual_policy.step_cost.StepCost`."""
        return self.a0_s, self.a1_s, self.a2_s, self.a3_s


class DecodeTimes(_Part):
    """A step over n requests with k tokens of KV takes
    base_s + per_request_s * n + per_kv_token_s * k seconds."""

    base_s: float = Field(ge=0)
    per_request_s: float = Field(gt=0)
    per_kv_token_s: float = Field(ge=0)
    error: FitQuality

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """In the order of `rorqual_policy.placement.PlacementParams`."""
        return self.base_s, self.per_request_s, self.per_kv_token_s


class VerifyTimes(_Part):
    """Steps that check guesses, by rows of all sequences together."""

    num_rows: tuple[int, ...] = Field(min_length=1)
    """Ascending."""
    step_s: tuple[float, ...] = Field(min_length=1)
    """Of a step with so many rows."""

    @model_validator(mode="after")
    def _has_a_time_for_each(self) -> VerifyTimes:
        if len(self.num_rows) != len(self.step_s):
            raise ValueError(f"{len(self.num_rows)} row counts, {len(self.step_s)} times")
        if self.num_rows[0] < 1 or any(a >= b for a, b in pairwise(self.num_rows)):
            raise ValueError(f"row counts must be ascending from 1 on; got {self.num_rows}")
        if min(self.step_s) <= 0:
            raise ValueError(f"times must be > 0; got {self.step_s}")
        return self


class Machine(_Part):
    """What step times depend on besides the model."""

    processor: str
    num_threads: int = Field(ge=1)
    device: str
    num_ranks: int = Field(1, ge=1)
    """Processes that make a step together."""

    @property
    def fingerprint(self) -> str:
        """Equal for machines of which one calibration is true for the other."""
        text = f"{self.processor}\n{self.num_threads}\n{self.device}"
        text += f"\n{self.num_ranks} ranks" if self.num_ranks > 1 else ""
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


class Calibration(_Part):
    """What is known of one model on one machine."""

    version: Literal[1] = 1
    model_fingerprint: str
    machine: Machine
    measured_unix_s: float
    prefill: PrefillTimes | None = None
    decode: DecodeTimes | None = None
    verify: VerifyTimes | None = None


def this_machine(device: str, num_threads: int, num_ranks: int = 1) -> Machine:
    """The machine of this process. device: `cpu`, or the accelerator's name."""
    return Machine(
        processor=_processor(), num_threads=num_threads, device=device, num_ranks=num_ranks
    )


def _processor() -> str:
    """Model name of the CPU; its architecture where the kernel tells no more."""
    with contextlib.suppress(OSError):
        for line in _CPU_FACTS.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()


def calibration_path(home: Path, model_fingerprint: str, machine: Machine) -> Path:
    """Where the calibration of this model and machine lies."""
    return home / _FOLDER / f"{model_fingerprint}-{machine.fingerprint}.json"


def read_calibration(home: Path, model_fingerprint: str, machine: Machine) -> Calibration | None:
    """What is known of this model on this machine; None without a readable file."""
    return _read(calibration_path(home, model_fingerprint, machine))


def newest_calibration(home: Path, model_fingerprint: str) -> Calibration | None:
    """What is known of this model on any machine, for who does not run it: the newest of all."""
    paths = (home / _FOLDER).glob(f"{model_fingerprint}-*.json")
    known = [found for path in paths if (found := _read(path)) is not None]
    return max(known, key=lambda c: c.measured_unix_s, default=None)


def _read(path: Path) -> Calibration | None:
    try:
        return Calibration.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def write_calibration(home: Path, found: Calibration) -> Path:
    """Keep what was measured; parts it lacks stay as they were. Atomic among processes.

    Raises: OSError.
    """
    path = calibration_path(home, found.model_fingerprint, found.machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        before = _read(path)
        kept = {name: getattr(before, name, None) for name in ("prefill", "decode", "verify")}
        new = {name: getattr(found, name) or kept[name] for name in kept}
        _replace(path, found.model_copy(update=new).model_dump_json(indent=2) + "\n")
    return path


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
