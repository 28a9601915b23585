"""Image files within bounds; everything else is refused with a sentence."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rorqual_engine.models.deepseek.image_size import ImageRules
from rorqual_vision.picture import DecodeLimits, decode
from rorqual_vision.prepare import fit
from rorqual_vision.problems import BadImage

from tests.support.pictures import picture, picture_file

LIMITS = DecodeLimits(max_edge=4096, max_pixels=4_000_000)
RULES = ImageRules(min_pixels=7056, max_tokens=64)


def png(width: int, height: int, data: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + crc

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_the_four_formats(kind: str) -> None:
    assert decode(picture_file(kind=kind), LIMITS).size == (100, 80)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1", "I;16", "RGB"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    source = picture(1).convert("L")
    if mode == "I;16":
        source = Image.fromarray(np.asarray(source).astype(np.uint16) * 257)
    else:
        source = source.convert(mode)
    out = io.BytesIO()
    source.save(out, "PNG")
    found = decode(out.getvalue(), LIMITS)
    assert found.mode == "RGB"
    if mode not in ("1", "P"):
        grey = np.asarray(picture(1).convert("L")).astype(int)
        assert np.abs(np.asarray(found)[..., 0].astype(int) - grey).max() <= 1


def test_a_bomb_is_refused_by_its_header() -> None:
    bomb = png(60_000, 60_000, zlib.compress(bytes(10_000_000)))
    tracemalloc.start()
    try:
        with pytest.raises(BadImage, match="more than 4000000 pixels"):
            decode(bomb, LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(BadImage, match="at most 4000000"):
        decode(png(4000, 4000, b""), LIMITS)
    with pytest.raises(BadImage, match="longer than 4096"):
        decode(png(5000, 1, b""), LIMITS)


def test_a_jpeg_of_endless_scans_is_refused() -> None:
    out = io.BytesIO()
    picture(1).save(out, "JPEG", progressive=True)
    scan = out.getvalue()[out.getvalue().rindex(b"\xff\xda") : -2]
    assert decode(out.getvalue(), LIMITS).size == (100, 80)
    with pytest.raises(BadImage, match="too many scans"):
        decode(out.getvalue()[:-2] + 100 * scan + b"\xff\xd9", LIMITS)


def test_other_formats_and_rubbish_are_refused() -> None:
    for kind in ("BMP", "TIFF", "PPM"):
        with pytest.raises(BadImage, match="not a png, jpeg, gif or webp"):
            decode(picture_file(kind=kind), LIMITS)
    with pytest.raises(BadImage, match="empty"):
        decode(b"", LIMITS)
    with pytest.raises(BadImage, match="can't be read"):
        decode(picture_file(kind="JPEG")[:300], LIMITS)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["PNG", "JPEG", "GIF", "WEBP"]),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=8),
    st.integers(0, 6000),
)
def test_damaged_files_end_in_a_sentence(
    kind: str, damage: list[tuple[int, int]], length: int
) -> None:
    data = bytearray(picture_file(3, kind=kind)[:length])
    for place, value in damage:
        if place < len(data):
            data[place] = value
    try:
        assert decode(bytes(data), LIMITS).mode == "RGB"
    except BadImage as error:
        assert str(error)


def test_the_digest_names_what_is_seen_however_it_is_packed() -> None:
    first = fit(picture_file(1), "", RULES, LIMITS)
    same = fit(picture_file(1, kind="GIF", mode="RGB"), "", RULES, LIMITS)
    lossless = io.BytesIO()
    picture(1).save(lossless, "WEBP", lossless=True)
    assert fit(lossless.getvalue(), "high", RULES, LIMITS).digest == first.digest
    assert len(first.digest) == 32
    others = [same, fit(picture_file(2), "", RULES, LIMITS)]
    others.append(fit(picture_file(1, 80, 100), "", RULES, LIMITS))
    assert len({first.digest, *(other.digest for other in others)}) == 4


def test_low_detail_is_smaller() -> None:
    large = fit(picture_file(1, 900, 900), "high", RULES, LIMITS)
    low = fit(picture_file(1, 900, 900), "low", RULES, LIMITS)
    assert low.digest != large.digest
    assert low.plan.num_tokens < large.plan.num_tokens <= 64
    assert low.pixels.shape == (low.plan.height, low.plan.width, 3)
