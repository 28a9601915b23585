"""Documents become text within bounds; a hostile one costs its own process at most."""

from __future__ import annotations

import base64
import json

import pytest
from rorqual_recipe.documents import (
    PDF,
    DocumentLimits,
    DocumentReader,
    UnreadableDocument,
    read_document,
    reading_weight,
)

from tests.support.pdf import make_pdf


def test_text_of_a_pdf_page_by_page() -> None:
    found = read_document(make_pdf(["One page", "Another page"]), PDF)
    assert found.text == "One page\n\nAnother page"
    assert "only the text" in found.note


def test_only_the_first_pages_and_characters_are_read_and_that_is_said() -> None:
    few = read_document(make_pdf(["page"] * 9), PDF, DocumentLimits(max_pages=2))
    assert few.text == "page\n\npage"
    assert "2 of 9 pages" in few.note
    short = read_document(make_pdf(["12345678"] * 9), PDF, DocumentLimits(max_chars=20))
    assert len(short.text.replace("\n", "")) <= 20


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"%PDF-1.4 junk", PDF),
        (b"\n%PDF-1.4", PDF),
        (b"", PDF),
        (make_pdf([" "]), PDF),
        (b"\xff\xfe\xfd", "text/plain"),
        (b"a\0b", "text/plain"),
        (b"x", "application/msword"),
        (b"x" * 11, "text/plain"),
    ],
)
def test_what_cannot_be_read_says_so(data: bytes, media_type: str) -> None:
    with pytest.raises(UnreadableDocument):
        read_document(data, media_type, DocumentLimits(max_chars=10))


def test_text_in_any_of_its_types() -> None:
    assert read_document("größe".encode(), "text/markdown").text == "größe"
    assert read_document("\ufeffa".encode(), "application/json").text == "a"
    assert read_document("a".encode("utf-16"), "text/plain").text == "a"


def test_a_request_has_one_budget_for_all_of_its_documents() -> None:
    reader = DocumentReader(DocumentLimits(max_documents=2))
    for _ in range(2):
        reader.read(b"a", "text/plain")
    with pytest.raises(UnreadableDocument, match="at most 2"):
        reader.read(b"a", "text/plain")
    late = DocumentReader(DocumentLimits(max_total_s=0.0))
    with pytest.raises(UnreadableDocument, match="could not be read in 0 s"):
        late.read(make_pdf(["a"] * 300), PDF)


def test_the_reader_of_pdfs_sees_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    seen: dict[str, object] = {}
    run = subprocess.run

    def spy(command, **options):
        seen.update(options)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", spy)
    read_document(make_pdf(["a"]), PDF)
    assert seen["env"] == {}


@pytest.mark.parametrize("escape", ["", "J", "i"])
def test_a_body_with_a_pdf_is_never_light(escape: str) -> None:
    data = base64.b64encode(make_pdf(["a"])).decode()
    body = json.dumps({"data": data})
    if escape:
        body = body.replace(escape, f"\\u{ord(escape):04x}", 1)
    assert json.loads(body)["data"] == data
    assert reading_weight(body.encode()) > 1 << 20
    assert reading_weight(b'{"text": "plain"}') < 100
