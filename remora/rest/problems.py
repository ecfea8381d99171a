"""Answers to requests that fail: problem documents (RFC 9457)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from remora import errors
from remora.http_statuses import http_status
from remora.logging import get_logger
from remora.runtime.meters import OutageLog

_logger = get_logger(__name__)
_NO_KEY = 401
_FAILED = 500
_OWN = frozenset({"cause", "log", "path", "user"})


class Problem(msgspec.Struct, frozen=True):
    """Why a request failed.

    Attributes:
        type: ``urn:remora:`` and the kind of error.
        title: the kind of error.
        status: of the answer.
        detail: what went wrong, and what to do.
        retry: whether the same request may succeed later.
        attributes: those of the exception, as `remora.errors` describes it.
    """

    type: str
    title: str
    status: int
    detail: str
    retry: bool = False
    attributes: dict[str, Any] = {}


class Refusal(Exception):
    """The server does not do what was asked.

    Args:
        status: of the answer.
        title: the kind of error.
        detail: what went wrong, and what to do.
        wait_s: seconds until a retry makes sense; None for never.
        headers: more headers of the answer.
        attributes: of the exception.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        wait_s: int | None = None,
        headers: Mapping[str, str] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail = status, title, detail
        self.wait_s = wait_s
        self.headers = dict(headers or {})
        self.attributes = dict(attributes or {})


class TierFailed(Exception):
    """A tier of a context failed, and the rest was answered."""


class FailureLog:
    """Tells the log how the memory failed, which clients are not told.

    While it is away every request fails: that is logged once, then in summary, and so is its end.

    Args:
        monotonic: seconds that never go back.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._outages: dict[str, OutageLog] = {}

    def fail(self, error: Exception, part: str = "memory") -> None:
        """Note an error, if clients are not told its text.

        Args:
            error: what a request is answered with, or `TierFailed`.
            part: what failed: the memory, or a tier of a context.
        """
        match error:
            case TierFailed():
                pass
            case errors.RemoraError():
                if not _is_hidden(error, http_status(error)[0]):
                    return
            case Refusal() | msgspec.MsgspecError():
                return
            case _:
                _logger.error("rest_failed", exc_info=error)
                return
        if part not in self._outages:
            self._outages[part] = OutageLog(
                _logger,
                "rest_unavailable",
                ended="rest_available",
                monotonic=self._monotonic,
                level="warning",
            )
        self._outages[part].fail(error, part=part)

    def succeed(self, part: str = "memory") -> None:
        """Note that a part worked."""
        outage = self._outages.get(part)
        if outage is not None:
            outage.succeed()


def describe(error: Exception) -> Refusal:
    """The answer for an error; how the server failed is not shown."""
    match error:
        case Refusal():
            return error
        case errors.RemoraError():
            status, wait_s = http_status(error)
            headers = {"www-authenticate": "Bearer"} if status == _NO_KEY else None
            return Refusal(
                status,
                type(error).__name__,
                explain(type(error)) if _is_hidden(error, status) else str(error),
                wait_s=wait_s,
                headers=headers,
                attributes=_attributes(error),
            )
        case msgspec.MsgspecError():
            return Refusal(400, "InvalidRequest", str(error))
        case _:
            detail = "the server failed on this request; its log says why"
            return Refusal(500, "InternalError", detail)


def explain(kind: type[Exception] | None) -> str:
    """Return what a class of `remora.errors` means, as clients may read it."""
    meaning = (inspect.getdoc(kind) or "").partition("\n\n")[0] if kind is not None else ""
    return " ".join(meaning.split()) or "the memory failed; its log says why"


def _is_hidden(error: errors.RemoraError, status: int) -> bool:
    """Return whether clients are not told: a text may name files, or quote a log or model."""
    return status >= _FAILED and not isinstance(error, errors.ConfigError)


def _attributes(error: errors.RemoraError) -> dict[str, Any]:
    """Return plain data that a client may know: nothing of the server's files and processes."""
    shown = {}
    for name, value in vars(error).items():
        if name.startswith("_") or name in _OWN:
            continue
        try:
            msgspec.json.encode(value)
        except (TypeError, ValueError, msgspec.MsgspecError):
            continue
        shown[name] = value
    return shown
