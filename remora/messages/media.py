"""Pictures, sounds, videos and documents: their sizes, and the tokens that providers count.

Sizes are read from the first bytes of a file. Tokens are those of the providers' published rules,
as of November 2026:

- OpenAI, "Images and vision", calculating costs: a picture is scaled into 2 048 by 2 048, then to a
  shortest side of 768 pixels, and counts 85 tokens and 170 for each tile of 512 pixels.
- Anthropic, "Vision", image costs: width times height / 750, of a picture scaled to a longest side
  of 1 568 pixels, and at most 1 600.
- Google, "Image understanding", token calculation: 258 tokens for a picture of at most 384 pixels a
  side, else 258 for each tile, whose side is the shorter side of the picture divided by 1.5;
  32 tokens a second of sound, 263 of video, 258 for a page.

A document counts its pages as pictures and its text: 1 500 tokens a page, the lower end of what
Anthropic says in "PDF support". OpenAI counts 10 tokens a second of sound. A video
counts by Google's rule.
"""

from __future__ import annotations

import binascii
import io
import re
import struct
import wave
import zlib
from base64 import b64decode
from binascii import a2b_base64
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import ceil
from typing import Any, Literal, TypeAlias

import msgspec

Family: TypeAlias = Literal["openai", "anthropic", "gemini"]


class Measure(msgspec.Struct, frozen=True, array_like=True):
    """How large or long something is; zeros for what nobody knows.

    Attributes:
        width: of a picture, in pixels.
        height: of a picture, in pixels.
        pages: of a document.
        milliseconds: of sound, or of a video.
    """

    width: int = 0
    height: int = 0
    pages: int = 0
    milliseconds: int = 0


_UNKNOWN = Measure()

_SIGNATURES = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF", "application/pdf"),
    (b"RIFF", ""),
    (b"ID3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
)
_PAGE = re.compile(rb"/Type\s*/Page(?![s\w])")
_COUNT = re.compile(
    rb"/Type\s*/Pages\b[^>]{0,200}?/Count\s+(\d{1,6})"
    rb"|/Count\s+(\d{1,6})[^>]{0,200}?/Type\s*/Pages\b"
)
_OBJECTS = re.compile(rb"/Type\s*/ObjStm\b[^>]{0,300}>>\s*stream\r?\n")
_UNPACKED = 8 << 20  # bytes of a document that are looked at
_PAGE_BYTES = 50_000  # of a document whose pages cannot be counted
_SOUND_BYTES = 16_000  # a second, of compressed sound whose length is not known
_VIDEO_BYTES = 250_000  # the same of a video
_PAGE_TOKENS = 1_500
_SEEN = ("image/", "video/", "audio/", "application/pdf")
_LOOKED_AT = 1 << 18  # characters; a multiple of four
_BLANK = re.compile(r"\s")
_CHUNK = 1 << 20  # characters; a multiple of four


def measure(data: bytes, media: str = "") -> tuple[str, Measure]:
    """The media type of bytes, and how large or long they are; empty if they are of no known type.

    Args:
        data: of a file.
        media: what its sender says that it is.
    """
    head = data[:16]
    found = next((one for start, one in _SIGNATURES if head.startswith(start)), "")
    if head.startswith(b"RIFF"):
        found = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(head[8:12], "")
    media = media or found
    if found.startswith("image/") or media.startswith("image/"):
        return media, _pixels(data)
    if found == "application/pdf":
        return media, Measure(pages=_count_pages(data))
    if media.startswith("audio/"):
        return media, Measure(milliseconds=_milliseconds(data))
    if media.startswith("video/"):
        return media, Measure(milliseconds=_video_milliseconds(data))
    return media, _UNKNOWN


def _pixels(data: bytes) -> Measure:
    import imagesize  # type: ignore[import-untyped]  # noqa: PLC0415  # loaded with the first picture

    with suppress(Exception):  # of damaged files it raises what comes
        width, height = imagesize.get(io.BytesIO(data))
        if 0 < width < 1 << 20 and 0 < height < 1 << 20:
            return Measure(int(width), int(height))
    return _UNKNOWN


def _count_pages(data: bytes) -> int:
    objects = [data, *_packed_objects(data)]
    counted = [int(a or b) for one in objects for a, b in _COUNT.findall(one)]
    pages = sum(len(_PAGE.findall(one)) for one in objects)
    return max([pages, *counted]) or max(len(data) // _PAGE_BYTES, 1)


def _packed_objects(data: bytes) -> Iterator[bytes]:
    """The streams of objects of a document, unpacked as far as a bound (PDF 1.5)."""
    left = _UNPACKED
    for found in _OBJECTS.finditer(data):
        if left <= 0:
            return
        with suppress(zlib.error):
            unpacked = zlib.decompressobj().decompress(data[found.end() :], left)
            left -= len(unpacked)
            yield unpacked


def _milliseconds(data: bytes) -> int:
    with suppress(Exception), wave.open(io.BytesIO(data)) as sound:
        return int(sound.getnframes() * 1_000 // max(sound.getframerate(), 1))
    return len(data) * 1_000 // _SOUND_BYTES


def _video_milliseconds(data: bytes) -> int:
    """How long a video is: the header of an MP4 says it (ISO 14496-12, `mvhd`)."""
    begin = data.find(b"mvhd") + 4
    with suppress(struct.error, ZeroDivisionError):
        if begin > 4:
            form, skipped = (">IQ", 20) if data[begin : begin + 1] == b"\1" else (">II", 12)
            units, duration = struct.unpack_from(form, data, begin + skipped)
            found = int(duration * 1_000 // units)
            if 0 < found < 1 << 40:
                return found
    return len(data) * 1_000 // _VIDEO_BYTES


def words_of(size: Measure) -> str:
    """How large something is, for people: ``1024x768``, ``3 pages``, ``12 s``."""
    if size.width:
        return f"{size.width}\N{MULTIPLICATION SIGN}{size.height}"
    if size.pages:
        return f"{size.pages} page{'s' if size.pages != 1 else ''}"
    return f"{ceil(size.milliseconds / 1_000)} s" if size.milliseconds else ""


def size_of(count: int) -> str:
    """A number of bytes, for people: ``4.1 MB``."""
    for unit, size in (("MB", 1_000_000), ("kB", 1_000)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def media_tokens(size: Measure, family: Family, *, video: bool = False) -> int | None:
    """Tokens of something of this size; None if its size is not known."""
    if size.width:
        return _PICTURES.get(family, _of_openai)(size.width, size.height)
    if size.pages:
        return size.pages * (258 if family == "gemini" else _PAGE_TOKENS)
    if size.milliseconds:
        a_second = 263 if video else 32 if family == "gemini" else 10
        return ceil(size.milliseconds * a_second / 1_000)
    return None


def _of_openai(width: int, height: int) -> int:
    scale = min(1.0, 2_048 / max(width, height))
    width, height = round(width * scale), round(height * scale)
    scale = min(1.0, 768 / max(min(width, height), 1))
    width, height = round(width * scale), round(height * scale)
    return 85 + 170 * max(ceil(width / 512), 1) * max(ceil(height / 512), 1)


def _of_anthropic(width: int, height: int) -> int:
    scale = min(1.0, 1_568 / max(width, height))
    return max(min(ceil(width * scale * height * scale / 750), 1_600), 1)


def _of_gemini(width: int, height: int) -> int:
    if max(width, height) <= 384:
        return 258
    unit = max(int(min(width, height) / 1.5), 1)
    return 258 * ceil(width / unit) * ceil(height / unit)


_PICTURES = {"openai": _of_openai, "anthropic": _of_anthropic, "gemini": _of_gemini}


_LINKED = ("image_url", "video_url")


def payload(part: Mapping[str, Any]) -> tuple[str, str]:
    """Where a content part holds its bytes, and the text there; empty if they are elsewhere."""
    kind = part["type"]
    if kind in _LINKED:
        place, text = f"{kind}.url", part[kind]["url"]
        if not text.startswith("data:"):
            return "", ""
    elif kind == "input_audio":
        place, text = "input_audio.data", part["input_audio"]["data"]
    elif isinstance(held := part.get(kind), Mapping) and isinstance(held.get("file_data"), str):
        place, text = f"{kind}.file_data", held["file_data"]
    else:
        return "", ""
    return place, text


def check_payload(part: Mapping[str, Any]) -> str:
    """Return what is wrong with the bytes that a content part holds, and where.

    Empty for nothing.
    """
    place, text = payload(part)
    if not place:
        return ""
    media = ""
    if text.startswith("data:"):
        head, comma, text = text.partition(",")
        media = head[5:].partition(";")[0]
        if not comma or not head.endswith(";base64"):
            return ""
    if part["type"] == "image_url" and not media.lower().startswith(_SEEN):
        return f"{place} is no picture, but {media or 'of no type'}"
    if part["type"] == "video_url" and not media.lower().startswith("video/"):
        return f"{place} is no video, but {media or 'of no type'}"
    if not text.isascii():
        return f"{place} is not base64: it has other letters"
    if _BLANK.search(text) is not None:
        text = "".join(text.split())
    for start in range(0, len(text), _CHUNK):
        try:
            a2b_base64(text[start : start + _CHUNK], strict_mode=True)
        except (binascii.Error, ValueError) as e:
            return f"{place} is not base64, or was cut: {e}"
    return ""


def describe(part: Mapping[str, Any]) -> Measure:
    """How large what a content part holds as base64 is."""
    place, encoded = payload(part)
    if not place:
        return _UNKNOWN
    media = ""
    if encoded.startswith("data:"):
        head, _, encoded = encoded.partition(",")
        media = head[5:].partition(";")[0]
    elif part["type"] == "input_audio":
        media = f"audio/{part['input_audio']['format']}"
    with suppress(ValueError):
        return measure(b64decode(encoded[:_LOOKED_AT]), media)[1]
    return _UNKNOWN
