"""Every scaled instance leaves files under a name of its own; only so many of them stay."""

import os

from rorqual_scaler.local_driver import drop_oldest


def test_the_newest_stay_and_whoever_runs_is_spared(tmp_path):
    names = [f"decode-scaled-{i:08x}.log" for i in range(6)]
    for age, name in enumerate([*names, "decode-1.log"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    drop_oldest(tmp_path, 2, spared={"decode-scaled-00000000"})
    assert {p.name for p in tmp_path.iterdir()} == {names[0], *names[-2:], "decode-1.log"}
    drop_oldest(tmp_path / "nowhere", 2, spared=())
