"""rorqual.json: what a prepared model directory holds, and the proof of it."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rorqual_engine.errors import CorruptModel, ModelNotFound

MANIFEST_NAME = "rorqual.json"
FORMAT_VERSION = 1
_HF_FILES = ("config.json", "tokenizer.json")
_READ_BYTES = 1 << 22


@dataclass(frozen=True)
class FileEntry:
    """One file as it was when the directory was made."""

    sha256: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Manifest:
    """Identity of a model directory."""

    id: str
    """The name clients use, e.g. smollm2-135m-instruct."""
    source: str
    """Where the weights came from, with its own sha256."""
    fingerprint: str
    """Equal for equal weights, configuration and tokenizer."""
    files: dict[str, FileEntry] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def content_fingerprint(files: dict[str, str]) -> str:
    """One hex id over file names and their sha256."""
    text = json.dumps(sorted(files.items()), separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def describe_files(directory: Path) -> dict[str, FileEntry]:
    """Hashes every file of a directory except the manifest itself."""
    entries = {}
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.name != MANIFEST_NAME:
            stat = path.stat()
            entries[path.name] = FileEntry(file_sha256(path), stat.st_size, stat.st_mtime_ns)
    return entries


def check_hf_directory(directory: Path) -> Path:
    """The directory, when it holds what the engine needs and may read it. Raises: ModelNotFound."""
    if not os.access(directory, os.R_OK | os.X_OK):
        raise ModelNotFound(directory, "it can't be read (permission denied)")
    weights = sorted(directory.glob("*.safetensors"))
    if not weights:
        raise ModelNotFound(directory, "no *.safetensors file")
    for path in (*(directory / name for name in _HF_FILES), *weights):
        if not path.is_file():
            raise ModelNotFound(directory, f"{path.name} is missing")
        if not os.access(path, os.R_OK):
            raise ModelNotFound(directory, f"{path.name} can't be read (permission denied)")
    return directory


def write_manifest(directory: Path, model_id: str, source: str) -> Manifest:
    """Describes the directory's present content and writes it down."""
    files = describe_files(directory)
    fingerprint = content_fingerprint({name: entry.sha256 for name, entry in files.items()})
    manifest = Manifest(model_id, source, fingerprint, files)
    text = json.dumps(asdict(manifest), indent=2, sort_keys=True)
    (directory / MANIFEST_NAME).write_text(text + "\n")
    return manifest


def read_manifest(directory: Path) -> Manifest | None:
    """The directory's manifest, None when it has none. Raises: CorruptModel."""
    path = directory / MANIFEST_NAME
    if not path.exists():
        return None
    try:
        fields = json.loads(path.read_text())
        fields["files"] = {name: FileEntry(**entry) for name, entry in fields["files"].items()}
        manifest = Manifest(**fields)
    except (ValueError, TypeError, KeyError) as err:
        raise CorruptModel(path, f"not a manifest ({err})") from err
    if manifest.format_version != FORMAT_VERSION:
        raise CorruptModel(path, f"format {manifest.format_version}, expected {FORMAT_VERSION}")
    return manifest


def verify(directory: Path, manifest: Manifest, *, full: bool = False) -> None:
    """Checks every file: size and mtime, and the content where they differ or full is set.

    Raises: ModelNotFound for a missing file, CorruptModel for a changed one.
    """
    for name, entry in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise ModelNotFound(directory, f"{name} is missing")
        stat = path.stat()
        if stat.st_size != entry.size_bytes:
            raise CorruptModel(path, f"{stat.st_size} bytes, expected {entry.size_bytes}")
        touched = stat.st_mtime_ns != entry.mtime_ns
        if (full or touched) and file_sha256(path) != entry.sha256:
            raise CorruptModel(path, "sha256 differs from the manifest")
