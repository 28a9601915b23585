"""Small PDF files with text in them."""

from __future__ import annotations

from collections.abc import Sequence


def make_pdf(pages: Sequence[str]) -> bytes:
    """One line of ASCII text a page."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * index) for index in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, line in enumerate(pages):
        objects += [_page(content=5 + 2 * index), _content(line)]
    return _file(objects)


def _page(content: int) -> bytes:
    return (
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
        b"/Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>" % content
    )


def _content(line: str) -> bytes:
    stream = b"BT /F1 24 Tf 72 720 Td (%s) Tj ET" % line.encode("ascii")
    return b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream)


def _file(objects: Sequence[bytes]) -> bytes:
    out = b"%PDF-1.4\n"
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    count = len(objects) + 1
    head = b"xref\n0 %d\n0000000000 65535 f \n" % count
    tail = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (count, len(out))
    return out + head + table + tail
