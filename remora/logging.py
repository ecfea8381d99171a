"""Structured logs that go where the host decides.

A host that has configured structlog gets the events through its own processors; every other host
gets lines of ``key=value`` through the standard library, whose records have the same fields as a
dict in ``record.remora``. Logger names begin with ``remora.``.

No line names a user or a session: a log outlives what is erased (G13). Keys are replaced by their
pseudonyms, which the operator can compute from an id (`remora.ids`), and nobody the id from them.
They are not the digests in long-term memory, which are made under a key.

structlog is loaded by the first line that is written, or by the first runtime that opens: it loads
rich, attrs and pygments where they are installed, a third of the time of `import remora`.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import structlog


class _LazyLogger:
    """A logger that is created at its first use, and never raises.

    The host's handlers may: a line is written in the middle of commits and jobs, which must go on.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _own(self) -> Any:
        """For hosts without structlog."""
        import logging  # noqa: PLC0415  # see above

        import structlog  # noqa: PLC0415

        return structlog.wrap_logger(
            logging.getLogger(self._name),
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                _use_pseudonyms,
                _round_floats,
                _render_for_stdlib,
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
        )

    def _current(self) -> Any:
        """Return what the host wants now: it may configure structlog at any time."""
        import structlog  # noqa: PLC0415

        if not structlog.is_configured():
            return self._own
        host = structlog.get_config()
        logger = host["logger_factory"](self._name)
        named = {} if getattr(logger, "name", None) == self._name else {"logger": self._name}
        wrapped = structlog.wrap_logger(
            logger,
            processors=[_format_exception, _use_pseudonyms, _round_floats, *host["processors"]],
            wrapper_class=host["wrapper_class"],
            context_class=host["context_class"],
            cache_logger_on_first_use=False,
        )
        return wrapped.bind(**named)

    def __getattr__(self, method: str) -> Any:
        def write_safely(*words: Any, **fields: Any) -> None:
            try:
                getattr(self._current(), method)(*words, **fields)
            except Exception:
                _report_failure()

        self.__dict__[method] = write_safely
        return write_safely


def _report_failure() -> None:
    """Report a line that cannot be written, as `logging.Handler.handleError`: it stops nothing."""
    import logging  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    if logging.raiseExceptions and sys.stderr is not None:
        with suppress(OSError, ValueError):
            traceback.print_exc(file=sys.stderr)


def _use_pseudonyms(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace the keys of users and sessions, also where an error quotes their ids.

    A processor of structlog.
    """
    del logger, method
    named = {name: value for name, value in event.items() if hasattr(value, "pseudonym")}
    for key in named.values():
        for name, text in event.items():
            if isinstance(text, str):
                event[name] = _without_ids(text, key)
    event.update({name: key.pseudonym for name, key in named.items()})
    return event


def _format_exception(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Write a traceback as text, so that what it quotes can be replaced."""
    import structlog  # noqa: PLC0415

    formatted: MutableMapping[str, Any] = structlog.processors.format_exc_info(
        cast("Any", logger), method, event
    )
    return formatted


def _round_floats(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Nobody reads microseconds in a log."""
    del logger, method
    event.update(
        {name: round(value, 3) for name, value in event.items() if isinstance(value, float)}
    )
    return event


def _render_for_stdlib(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    """The line as text, and its fields for formatters that write JSON."""
    import structlog  # noqa: PLC0415

    render = structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False)
    fields = dict(event)
    return (render(cast("Any", logger), method, event),), {"extra": {"remora": fields}}


def _without_ids(text: str, key: Any) -> str:
    for id_, stand_in in zip(key, key.pseudonym.split("/"), strict=True):
        text = text.replace(repr(id_), repr(stand_in))
    return text


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A structured logger over ``logging.getLogger(name)``."""
    return cast("structlog.stdlib.BoundLogger", _LazyLogger(name))
