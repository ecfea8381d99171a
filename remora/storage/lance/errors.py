"""What LanceDB's errors mean.

It raises builtins only, whatever happened, so their texts have to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from remora.errors import LongTermError
from remora.runtime.probes import probe

__all__ = ["DAMAGED", "MISSING", "map_errors", "meaning"]

DAMAGED, MISSING = "a file is damaged", "a file is missing"
"""What the next opening mends."""

_RUST = re.compile(r",? (?:/rustc/|/root/\.cargo/|/home/[^ ]*/\.cargo/)\S*(?:, /\S*)*")

_KINDS: tuple[tuple[str, str, bool], ...] = (
    # what the text says; what it means; whether the same may succeed later
    (r"os error 28|No space left|os error 122|StorageFull", "the disk is full", True),
    (r"os error 30|Read-only file system", "the disk is read-only", True),
    (r"os error 13|os error 1\b|[Pp]ermission denied", "there is no permission", True),
    (r"os error 24|Too many open files", "too many files are open", True),
    (r"os error 5\b|Errno 5\]|Input/output error", "the disk failed", True),
    (
        r"[Cc]ommit conflict|[Ii]ncompatible transaction|concurrent writers|preempted",
        "another write was faster",
        True,
    ),
    (r"[Tt]imed? ?out|[Tt]imeout", "it took too long", True),
    (r"is closed|PanicException", "it is closed", True),
    (
        r"[Cc]onnection|Failed to connect|RetryError|status code 5|error sending request",
        "it cannot be reached",
        True,
    ),
    (
        (
            r"Invalid range|file size is too small|[Cc]orrupt|[Mm]agic|flatbuffer|out of "
            r"bounds|InvalidData"
        ),
        DAMAGED,
        False,
    ),
    (
        (
            r"fill whole buffer|failed to decode|DecodeError|Encountered .*EOF|incomplete "
            r"frame|[Dd]ecompress"
        ),
        DAMAGED,
        False,
    ),
    (
        (
            r"Not found: |os error 2\b|Errno 2\]|os error 20\b|Object at location .* not found|no "
            r"longer exists"
        ),
        MISSING,
        False,
    ),
)
_TABLE = tuple((re.compile(pattern), text, retryable) for pattern, text, retryable in _KINDS)


def meaning(error: BaseException) -> tuple[str, bool]:
    """What happened, and whether the same may succeed later.

    What is not known is retryable where LanceDB says RuntimeError or OSError: a job that waits is
    better than one that is given up; ValueError and TypeError are calls that it will never take.
    """
    text = f"{type(error).__name__}: {error}"
    for pattern, meaning_text, retryable in _TABLE:
        if pattern.search(text):
            return meaning_text, retryable
    if isinstance(error, RuntimeError | OSError) or type(error).__name__ == "RustPanic":
        return "it failed", True
    return "it does not take this", False


@contextmanager
def map_errors(
    doing: str,
    *,
    writing: bool = False,
    secret_address: str | None = None,
    mark_suspect: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Turn what LanceDB, pyarrow and the file system raise into `LongTermError`.

    Args:
        doing: what was attempted.
        writing: a job that meets a damaged file waits, since the next start mends it, and is not
            given up.
        secret_address: an address that is to be in no message.
        mark_suspect: called where a file is damaged or missing.
    """
    try:
        yield
    except LongTermError:
        raise
    except (
        RuntimeError,
        OSError,
        ValueError,
        TypeError,
        NotImplementedError,
        ArithmeticError,
        LookupError,
    ) as e:
        probe("long_term_failed")
        meaning_text, retryable = meaning(e)
        mended = meaning_text in {DAMAGED, MISSING}
        if mended and mark_suspect is not None:
            mark_suspect()
        problem = _RUST.sub("", str(e))
        cause: BaseException | None = e
        if secret_address is not None:
            problem, cause = problem.replace(secret_address, "long_term.uri"), None
        text = f"long-term memory failed {doing}: {meaning_text} ({problem})"
        raise LongTermError(text, retryable=retryable or (writing and mended)) from cause
    except BaseException as e:
        # What LanceDB's Rust raises where it panics, past every `except Exception`, or within a
        # future; over a flipped byte, say.
        if type(e).__name__ not in {"PanicException", "RustPanic"}:
            raise
        raise LongTermError(
            f"long-term memory failed {doing}: {meaning(e)[0]} ({e})", retryable=True
        ) from None
