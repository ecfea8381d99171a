"""The types of an export and an import (docs/reference/export-format.md)."""

from __future__ import annotations

from remora.faces import publish
from remora.storage.export.transfer import (
    FORMAT,
    ExportHeader,
    MessageExport,
    SessionExport,
    TransferReport,
    UserExport,
)

__all__ = [
    "FORMAT",
    "ExportHeader",
    "MessageExport",
    "SessionExport",
    "TransferReport",
    "UserExport",
]

publish(__name__, __all__, globals())
