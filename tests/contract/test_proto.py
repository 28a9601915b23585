"""The wire: committed stubs are current, and messages keep their bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.message import Message

from tests.contract.distributions import ROOT
from tests.contract.golden_messages import GOLDEN

PROTO = ROOT / "proto" / "rorqual_proto" / "v1"
GOLDEN_DIR = Path(__file__).parent / "golden"


def test_the_committed_stubs_are_what_protoc_makes(tmp_path: Path) -> None:
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto"]
    names = [str(path.relative_to(ROOT)) for path in sorted(PROTO.glob("*.proto"))]
    runs = (
        [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *names],
        [f"--grpc_python_out={tmp_path}", "proto/rorqual_proto/v1/tensor.proto"],
    )
    for arguments in runs:
        subprocess.run([*protoc, *arguments], cwd=ROOT, check=True, timeout=60)
    made = {path.name: path for path in (tmp_path / "rorqual_proto" / "v1").iterdir()}
    committed = {path.name for path in PROTO.iterdir() if "_pb2" in path.name}
    assert made.keys() == committed
    changed = [n for n, path in made.items() if path.read_text() != (PROTO / n).read_text()]
    assert not changed, f"run make proto: {changed}"


@pytest.mark.parametrize("name", GOLDEN)
def test_a_message_keeps_its_bytes(name: str) -> None:
    """A changed line in golden/ is a changed wire format: older processes would misread it."""
    message: Message = GOLDEN[name]
    committed = bytes.fromhex((GOLDEN_DIR / f"{name}.hex").read_text())
    assert message.SerializeToString(deterministic=True) == committed
    assert type(message).FromString(committed) == message


def test_every_boundary_has_a_golden_message() -> None:
    covered = {message.DESCRIPTOR.file.name.rpartition("/")[2] for message in GOLDEN.values()}
    assert covered == {path.name for path in PROTO.glob("*.proto")}
