"""Structured logs that a library may write: through the standard library, so that the host decides where they go.

structlog's own default prints to standard output, which belongs to the host. Logger names begin with ``remora.``.
"""

from __future__ import annotations

import logging

import structlog

__all__ = ["get_logger"]

_PROCESSORS = (
    structlog.stdlib.filter_by_level,
    structlog.processors.StackInfoRenderer(),
    structlog.processors.format_exc_info,
    structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False),
)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A structured logger over ``logging.getLogger(name)``."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name), processors=list(_PROCESSORS), wrapper_class=structlog.stdlib.BoundLogger
    )
    return logger
