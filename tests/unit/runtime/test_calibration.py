"""The calibration file: what was measured is read back, part by part; a bad file is none."""

from __future__ import annotations

from pathlib import Path

from rorqual_runtime.calibration import (
    Calibration,
    DecodeTimes,
    FitQuality,
    Machine,
    PrefillTimes,
    calibration_path,
    newest_calibration,
    read_calibration,
    this_machine,
    write_calibration,
)

ERROR = FitQuality(median=0.01, p90=0.03, worst=0.05, num_samples=20)
PREFILL = PrefillTimes(a0_s=4e-3, a1_s=9e-4, a2_s=6e-8, a3_s=0.0, error=ERROR)
DECODE = DecodeTimes(base_s=0.02, per_request_s=1e-3, per_kv_token_s=2e-7, error=ERROR)
HERE = Machine(processor="a cpu", num_threads=2, device="cpu")


def _calibration(
    at_s: float,
    machine: Machine = HERE,
    prefill: PrefillTimes | None = None,
    decode: DecodeTimes | None = None,
) -> Calibration:
    return Calibration(
        model_fingerprint="f1",
        machine=machine,
        measured_unix_s=at_s,
        prefill=prefill,
        decode=decode,
    )


def test_parts_measured_at_different_times_are_kept_side_by_side(tmp_path: Path) -> None:
    write_calibration(tmp_path, _calibration(1.0, prefill=PREFILL))
    write_calibration(tmp_path, _calibration(2.0, decode=DECODE))
    found = read_calibration(tmp_path, "f1", HERE)
    assert found is not None
    assert found.prefill == PREFILL and found.decode == DECODE and found.measured_unix_s == 2.0


def test_another_model_or_machine_is_another_file(tmp_path: Path) -> None:
    write_calibration(tmp_path, _calibration(1.0, prefill=PREFILL))
    other = HERE.model_copy(update={"num_threads": 4})
    assert read_calibration(tmp_path, "f1", other) is None
    assert read_calibration(tmp_path, "f2", HERE) is None
    write_calibration(tmp_path, _calibration(5.0, other, decode=DECODE))
    newest = newest_calibration(tmp_path, "f1")
    assert newest is not None and newest.machine == other
    assert newest_calibration(tmp_path, "f2") is None


def test_a_file_that_cant_be_read_is_no_calibration(tmp_path: Path) -> None:
    path = calibration_path(tmp_path, "f1", HERE)
    path.parent.mkdir()
    path.write_text('{"version": 2}')
    assert read_calibration(tmp_path, "f1", HERE) is None
    assert newest_calibration(tmp_path, "f1") is None
    write_calibration(tmp_path, _calibration(1.0, prefill=PREFILL))
    assert read_calibration(tmp_path, "f1", HERE) is not None


def test_a_machine_is_told_by_processor_threads_and_device() -> None:
    assert this_machine("cpu", 2).fingerprint == this_machine("cpu", 2).fingerprint
    assert this_machine("cpu", 2).fingerprint != this_machine("H200", 2).fingerprint
    assert this_machine("cpu", 2).fingerprint != this_machine("cpu", 2, 2).fingerprint
