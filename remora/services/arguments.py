"""Arguments of the public verbs, checked before anything is asked or written."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, cast

from remora.errors import InvalidInput
from remora.messages import without_surrogates
from remora.storage.listing import ListingOrder, ListingPage

MAX_BATCH = 1_000
"""Most messages, memories, texts, queries or sessions that one call carries."""

MAX_IDS = 10_000
"""Most ids or positions that one call carries, and messages of a state that is restored."""

MAX_PARTS = 1_000
"""Most content parts, and most tool calls, of one message."""

MAX_TEXT_CHARACTERS = 100_000
"""Longest query, memory, and text that is learned: each is embedded as a whole."""

MAX_RESULTS = 1_000
"""Largest `k`."""

MAX_INT = (1 << 62) - 1
"""Largest whole number: integers of the journal have 64 bits."""

_MAX_PATH = 4_000  # bytes; Linux refuses longer paths
_MAX_NAME = 200  # bytes of a name in a path; 255 are allowed, and staged files add a suffix
# as a path, too, where // is /; C:/ is none
_ADDRESS = re.compile(r"\s*([a-z][a-z0-9+.-]+):/", re.IGNORECASE)


def check_int(value: object, name: str, *, low: int = 0, high: int = MAX_INT) -> int:
    """`value`, if it is an integer from `low` to `high`.

    Raises:
        InvalidInput: it is another type (a bool included), or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name} must be a whole number, not {type(value).__name__}")
    if value < low:
        raise InvalidInput(
            f"{name} must be {'positive' if low == 1 else f'at least {low}'}, not {value}"
        )
    if value > high:
        raise InvalidInput(f"{name} must be at most {high}, not {value}")
    return value


def check_result_count(value: object, name: str = "limit") -> int:
    """`value`, if it is a number of results that may be asked for: 1 to `MAX_RESULTS`.

    Raises:
        InvalidInput: it is not.
    """
    return check_int(value, name, low=1, high=MAX_RESULTS)


def check_seconds(value: object, name: str) -> float | None:
    """`value`, if it is a number of seconds to wait, or None; 0 and infinite are allowed.

    Raises:
        InvalidInput: it is another type (a bool included), not a number, or negative.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{name} must be a number of seconds, not {type(value).__name__}")
    if math.isnan(value) or value < 0:
        raise InvalidInput(f"{name} must be at least 0 seconds, not {value}")
    return value


def check_page(order: object, prefix: object, limit: object, after: object) -> ListingPage:
    """The page of a listing that a caller wants.

    Raises:
        InvalidInput: an argument is of another type or out of range, or `after` is no cursor.
    """
    check_choice(order, "order", ("name", "newest", "oldest"))
    if limit is not None:
        check_int(limit, "limit", low=1)
    prefix = without_surrogates(check_text(prefix, "prefix"))
    if after is not None and not check_text(after, "after"):
        raise InvalidInput("after must be the cursor of a listing; leave it out for the first page")
    for name, text in (("prefix", prefix), ("after", after)):
        if "\x00" in str(text):  # which PostgreSQL does not take in a text
            raise InvalidInput(f"{name} holds NUL, which no id does")
    return ListingPage.behind(
        None if after is None else without_surrogates(str(after)),
        order=cast("ListingOrder", order),
        prefix=prefix,
        limit=cast("int | None", limit),
    )


def check_flag(value: object, name: str) -> bool:
    """`value`, if it is True or False.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, not {type(value).__name__}")
    return value


def check_text(value: object, name: str) -> str:
    """`value`, if it is text.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be text, not {type(value).__name__}")
    return value


def check_query(value: object) -> str:
    """A query that can be embedded: text, lone surrogates replaced.

    Raises:
        InvalidInput: it is not text, or longer than `MAX_TEXT_CHARACTERS`.
    """
    text = check_text(value, "query")
    return without_surrogates(check_length(text, "the query"))


def check_length(text: str, name: str) -> str:
    """`text`, if it is short enough to be embedded.

    Raises:
        InvalidInput: it is longer than `MAX_TEXT_CHARACTERS`.
    """
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidInput(
            f"{name} has {len(text)} characters; at most {MAX_TEXT_CHARACTERS} are allowed"
        )
    return text


def check_choice(value: object, name: str, choices: Collection[str]) -> None:
    """Check that `value` is one of the words in `choices`.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(value, str) or value not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(choices)}, not {value!r:.60}")


def check_function(value: object, name: str) -> None:
    """Check that `value` can be called, or is None.

    Raises:
        InvalidInput: it is neither.
    """
    if value is not None and not callable(value):
        raise InvalidInput(f"{name} must be a function, not {type(value).__name__}")


def check_path(value: object, name: str) -> Path:
    """`value` as a path that the file system can hold.

    Raises:
        InvalidInput: it is neither text nor a path, is too long, or has a character that no file
            name can have.
    """
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(given, str):
        raise InvalidInput(f"{name} must be a path, not {type(value).__name__}")
    try:
        encoded = os.fsencode(given)
    except UnicodeEncodeError as e:
        raise InvalidInput(f"{name} {given!r:.60} holds half of a character") from e
    if b"\0" in encoded:
        raise InvalidInput(f"{name} {given!r:.60} holds a NUL character")
    if len(encoded) > _MAX_PATH or any(len(one) > _MAX_NAME for one in encoded.split(b"/")):
        raise InvalidInput(
            f"{name} {given!r:.60}… is too long: at most {_MAX_PATH} bytes, and {_MAX_NAME} in a "
            "name"
        )
    return Path(given)


def check_directory(value: object, name: str) -> Path:
    """`value` as the path of a memory directory.

    The errors do not repeat an address: it can hold a password.

    Raises:
        InvalidInput: see `check_path`; or it is the address of a database or of anything else.
    """
    path = check_path(value, name)
    if not str(value).strip():
        raise InvalidInput(f'{name} names no directory: pass "." for the current one')
    if (found := _ADDRESS.match(str(path))) is None:
        try:
            return path.expanduser()
        except RuntimeError as e:
            raise InvalidInput(f"{name}: {e}") from e
    if found[1].lower() in {"postgresql", "postgres"}:
        raise InvalidInput(
            f"{name} must be a directory, not the address of a database: put that into journal.dsn "
            "of a configuration file, which remora.connect, `remora http` and `remora mcp` take. "
            "`remora owners ADDRESS` shows who has the memories of a database open"
        )
    raise InvalidInput(f"{name} must be a directory of this machine, not an address ({found[1]}:)")


def collect(
    values: Iterable[Any],
    name: str,
    check: Callable[[Any, str], Any] | None = None,
    *,
    most: int = MAX_BATCH,
) -> list[Any]:
    """Several values as a list, of an iterable that may be endless.

    Args:
        values: not a text, which would be a list of characters.
        name: what they are, for the error.
        check: applied to each; None for no check.
        most: how many are allowed.

    Raises:
        InvalidInput: not an iterable, or of too many.
    """
    given: object = values
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidInput(f"{name} must be a list, not one {type(given).__name__}")
    found = list(islice(given, most + 1))
    if len(found) > most:
        raise InvalidInput(f"{name}: at most {most} are allowed in one call")
    return found if check is None else [check(one, name) for one in found]
