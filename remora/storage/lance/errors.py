"""The meaning of LanceDB's errors: it raises only builtins, so the texts are matched."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from remora.errors import LongTermError, OwnershipLost
from remora.runtime.probes import probe

DAMAGED, MISSING = "a file is damaged", "a file is missing"
"""Meanings of errors that the next opening repairs."""

OVERTAKEN = "another write was faster"
"""Meaning of a conflict: only another process writes to a table at the same time."""

_RUST = re.compile(r",? (?:/rustc/|/root/\.cargo/|/home/[^ ]*/\.cargo/)\S*(?:, /\S*)*")

_KINDS: tuple[tuple[str, str, bool], ...] = (
    # a pattern of the text, its meaning, whether a retry may succeed
    (r"os error 28|No space left|os error 122|StorageFull", "the disk is full", True),
    (r"os error 30|Read-only file system", "the disk is read-only", True),
    (r"os error 13|os error 1\b|[Pp]ermission denied", "there is no permission", True),
    (r"os error 24|Too many open files", "too many files are open", True),
    (r"os error 5\b|Errno 5\]|Input/output error", "the disk failed", True),
    (r"[Cc]ommit conflict|[Ii]ncompatible transaction", OVERTAKEN, True),
    (r"concurrent writers|preempted|another process wrote|another process's", OVERTAKEN, True),
    (r"[Tt]imed? ?out|[Tt]imeout", "it took too long", True),
    (r"is closed|PanicException", "it is closed", True),
    (r"[Cc]onnection|Failed to connect|RetryError", "it cannot be reached", True),
    (r"status code 5|error sending request", "it cannot be reached", True),
    (r"Invalid range|file size is too small|[Cc]orrupt|[Mm]agic|flatbuffer", DAMAGED, False),
    (r"out of bounds|InvalidData|fill whole buffer|failed to decode", DAMAGED, False),
    (r"DecodeError|Encountered .*EOF|incomplete frame|[Dd]ecompress", DAMAGED, False),
    (r"Not found: |os error 2\b|Errno 2\]|os error 20\b|no longer exists", MISSING, False),
    (r"Object at location .* not found", MISSING, False),
)
_TABLE = tuple((re.compile(pattern), text, retryable) for pattern, text, retryable in _KINDS)


def meaning(error: BaseException) -> tuple[str, bool]:
    """Return what happened, and whether a retry may succeed.

    An unknown RuntimeError or OSError is retried: a job that waits is better than a dead letter. A
    ValueError or TypeError means that LanceDB will never accept the call.
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
        writing: the error is retryable if a file is damaged or missing: the job waits for the next
            start, which repairs it.
        secret_address: an address that no message may contain.
        mark_suspect: called if a file is damaged or missing.
    """
    try:
        yield
    except (LongTermError, OwnershipLost):
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
        repairable = meaning_text in {DAMAGED, MISSING}
        if repairable and mark_suspect is not None:
            mark_suspect()
        problem = _RUST.sub("", str(e))
        cause: BaseException | None = e
        if secret_address is not None:
            problem, cause = problem.replace(secret_address, "long_term.uri"), None
        text = f"long-term memory failed {doing}: {meaning_text} ({problem})"
        raise LongTermError(text, retryable=retryable or (writing and repairable)) from cause
    except BaseException as e:
        # LanceDB's Rust code panics on some damage (a flipped byte); it is no `Exception`.
        if type(e).__name__ not in {"PanicException", "RustPanic"}:
            raise
        raise LongTermError(
            f"long-term memory failed {doing}: {meaning(e)[0]} ({e})", retryable=True
        ) from None
