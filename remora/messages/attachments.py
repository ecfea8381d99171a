"""Attachments: encoded bytes that a message refers to instead of holding them.

A message that is stored has a reference in place of each long run of base64: a msgpack extension,
which no text can forge. It holds the digest of the bytes and what is around them, so that the text
comes back as it was, character by character. A reader who does not need the bytes sees a few words
in their place: ``[image/png 1024x768, 4.1 MB]``.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Literal, Self, TypeAlias

import msgspec

from remora.messages.media import Measure, measure, size_of, words_of

Blobs: TypeAlias = Mapping[bytes, bytes]
"""Bytes by their digests."""

_CODE = 82
MAGIC = b"\x00rem\xff\x01"
"""Begins each reference; no text in UTF-8 has it."""
TEXT_KEYS = frozenset({"content", "text", "refusal", "arguments", "input", "transcript"})
"""What holds text: there a run of base64 is told from a long word by its characters."""
_OTHER = re.compile(r"[^A-Za-z0-9+/_-]")
_SAFE = re.compile("[_-]")
_TO_STANDARD = str.maketrans("-_", "+/")
_TO_SAFE = str.maketrans("+/", "-_")
_CHUNK = 1 << 20  # characters that are looked at or decoded at once; a multiple of four
_TYPE = re.compile(r"data:([\w.+-]{1,50}/[\w.+-]{1,50})[\w;=.+-]{0,100};base64,$")
_HEAD = "data:;base64,"
_DISTINCT, _SAMPLE = 32, 4_096  # characters that bytes have, of so many: a long word has fewer
_TAIL = 200  # characters before a run that may say of which type it is

_encode = msgspec.msgpack.Encoder().encode


Form: TypeAlias = Literal["base64", "url-safe", "text"]


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that a message refers to.

    Attributes:
        digest: SHA-256 of them.
        size: how many.
        form: what they stand for: a text in base64, or one that is none.
        media: their media type; empty if nothing says it.
        measure: how large the picture is, or how long the sound.
    """

    digest: bytes
    size: int
    form: Form
    media: str
    measure: Measure

    @property
    def words(self) -> str:
        """Return what is shown in their place."""
        about = " ".join(filter(None, (self.media or "data", words_of(self.measure))))
        return f"[{about}, {size_of(self.size)}]"


_Piece: TypeAlias = str | Blob
_decode_pieces = msgspec.msgpack.Decoder(list[_Piece]).decode


class AttachedText(str):
    """A text with words in place of its attachments, and what it is made of."""

    __slots__ = ("pieces",)
    pieces: list[_Piece]

    def __new__(cls, pieces: list[_Piece]) -> Self:
        """The text of these pieces."""
        made = super().__new__(cls, "".join([_words(one) for one in pieces]))
        made.pieces = pieces
        return made

    @property
    def words(self) -> str:
        """It, as a plain text."""
        return str.__str__(self)

    @property
    def blobs(self) -> Iterator[Blob]:
        """Return its attachments."""
        return (one for one in self.pieces if isinstance(one, Blob))


def _words(piece: _Piece) -> str:
    return piece if isinstance(piece, str) else piece.words


def read_reference(code: int, data: memoryview) -> AttachedText:
    """Return what a reference stands for, as a decoder of msgpack gives it.

    Raises:
        ValueError: it is no reference.
    """
    held = bytes(data)
    if code != _CODE or not held.startswith(MAGIC):
        raise ValueError(f"a message has an extension of the unknown type {code}")
    return AttachedText(_decode_pieces(held[len(MAGIC) :]))


def show_words(code: int, data: memoryview) -> str:
    """The words in place of a reference, as plain text; see `read_reference`."""
    return str.__str__(read_reference(code, data))


decode_attached = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=read_reference).decode
"""Decodes a chat dict or metadata, with an `AttachedText` for each text that has attachments."""


def has_attachments(*encoded: bytes | None) -> bool:
    """Return whether encoded chat dicts or metadata may refer to attachments."""
    return any(one is not None and MAGIC in one for one in encoded)


def find_blobs(*encoded: bytes | None) -> list[Blob]:
    """The attachments that encoded chat dicts or metadata refer to."""
    found: list[Blob] = []
    for one in encoded:
        if one is not None and MAGIC in one:
            found.extend(attached_to(decode_attached(one)))
    return found


def texts_in(value: object) -> Iterator[str]:
    """All texts in data from `decode_attached`."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)


def is_attachment(value: object) -> bool:
    """Return whether a text is one attachment, and not a text that has some."""
    if not isinstance(value, AttachedText):
        return False
    *before, last = value.pieces
    return isinstance(last, Blob) and (not before or (len(before) == 1 and _is_head(before[0])))


def _is_head(piece: _Piece) -> bool:
    return isinstance(piece, str) and piece.startswith("data:") and piece.endswith(";base64,")


# -- taking out ------------------------------------------------------------------------------------


def as_reference(text: object) -> msgspec.msgpack.Ext:
    """How a text with attachments is encoded, as a hook of an encoder.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(text, AttachedText):
        raise TypeError(f"{type(text).__name__} cannot be encoded")
    return msgspec.msgpack.Ext(_CODE, MAGIC + _encode(text.pieces))


def take_attachments(value: object, least: int, found: dict[bytes, bytes]) -> Any:
    """Plain data with references in place of long runs of base64; itself if it has none.

    No step of it takes the interpreter for longer than some milliseconds, however long a text is.

    Args:
        value: chat dict or metadata.
        least: characters of a run that is taken out.
        found: gets the bytes.
    """
    return _take(value, max(least, 4), found, "")


def _media_of(value: Mapping[str, Any]) -> str:
    """The media type that a dict says its bytes have."""
    for key in ("mime_type", "mimeType", "media_type", "mediaType"):
        if isinstance(said := value.get(key), str):
            return said[:_TAIL]
    said = value.get("format")
    return f"audio/{said[:_TAIL]}" if isinstance(said, str) else ""


def _take(value: object, least: int, found: dict[bytes, bytes], key: str, media: str = "") -> Any:
    if isinstance(value, str):
        return _take_from(value, least, found, key, media) if len(value) >= least else value
    if isinstance(value, dict):
        said = _media_of(value)
        taken = {name: _take(one, least, found, name, said) for name, one in value.items()}
        return value if all(taken[name] is one for name, one in value.items()) else taken
    if isinstance(value, (list, tuple)):
        several = [_take(one, least, found, key, media) for one in value]
        return value if all(a is b for a, b in zip(several, value, strict=True)) else several
    return value


def _take_from(text: str, least: int, found: dict[bytes, bytes], key: str, media: str) -> Any:
    pieces: list[_Piece] = []
    done = 0
    for start, end in _find_runs(text, least):
        before = text[done:start]
        alone = not pieces and end == len(text) and _is_head(before or _HEAD)
        is_all = alone and key not in TEXT_KEYS
        if not is_all and len(set(text[start : start + _SAMPLE])) < _DISTINCT:
            continue
        if before:
            pieces.append(before)
        told = _TYPE.search(before[-_TAIL:])
        pieces.append(_as_blob(text, start, end, told[1] if told else media, found))
        done = end
    if not pieces:
        return text
    if done < len(text):
        pieces.append(text[done:])
    return msgspec.msgpack.Ext(_CODE, MAGIC + _encode(pieces))


def _find_runs(text: str, least: int) -> Iterator[tuple[int, int]]:
    """Where the runs of at least `least` characters of base64 are, padding included."""
    step = least // 2
    at = 0
    while at + step <= len(text):
        # each run has a place that is looked at, and half of its length behind that
        if _OTHER.search(text, at, at + step) is not None:
            at += step
            continue
        first = max(at - step, 0)
        before = _OTHER.search(text[first:at][::-1])
        start = first if before is None else at - before.start()
        end = at + step
        while end < len(text) and (other := _OTHER.search(text, end, end + _CHUNK)) is None:
            end = min(end + _CHUNK, len(text))
        if end < len(text):
            assert other is not None
            end = other.start()
        at = end
        while end < len(text) and end < at + 2 and text[end] == "=":
            end += 1
        if end - start >= least:
            yield start, end
        at = end


def _as_blob(text: str, start: int, end: int, media: str, found: dict[bytes, bytes]) -> Blob:
    safe = _SAFE.search(text, start, min(start + _CHUNK, end)) is not None
    decoded = []
    for place in range(start, end, _CHUNK):
        piece = text[place : min(place + _CHUNK, end)]
        try:
            data = binascii.a2b_base64(
                piece.translate(_TO_STANDARD) if safe else piece, strict_mode=True
            )
        except binascii.Error:
            break
        if _encode_base64(data, safe=safe) != piece:
            break
        decoded.append(data)
    else:
        data = b"".join(decoded)
        media, size = measure(data, media)
        form: Form = "url-safe" if safe else "base64"
        return _keep(data, found, form=form, media=media, size=size)
    return _keep(text[start:end].encode(), found, form="text", media="", size=Measure())


def _encode_base64(data: bytes, *, safe: bool) -> str:
    text = binascii.b2a_base64(data, newline=False).decode()
    return text.translate(_TO_SAFE) if safe else text


def _keep(data: bytes, found: dict[bytes, bytes], *, form: Form, media: str, size: Measure) -> Blob:
    digest = sha256(data).digest()
    found[digest] = data
    return Blob(digest, len(data), form, media, size)


# -- putting back ----------------------------------------------------------------------------------


def put_back(value: object, blobs: Blobs) -> Any:
    """Data from `decode_attached` with the texts as they were; words in place of missing bytes."""
    if isinstance(value, AttachedText):
        return "".join([_text_of(one, blobs) for one in value.pieces]) if blobs else value.words
    if isinstance(value, dict):
        return {key: put_back(one, blobs) for key, one in value.items()}
    if isinstance(value, list):
        return [put_back(one, blobs) for one in value]
    return value


def _text_of(piece: _Piece, blobs: Blobs) -> str:
    if isinstance(piece, str):
        return piece
    data = blobs.get(piece.digest)
    if data is None:
        return piece.words
    if piece.form == "text":
        return data.decode()
    return _encode_base64(data, safe=piece.form == "url-safe")


def attached_to(value: object) -> list[Blob]:
    """The attachments in data from `decode_attached`."""
    return [
        blob for text in texts_in(value) if isinstance(text, AttachedText) for blob in text.blobs
    ]
