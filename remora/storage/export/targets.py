"""The form of an export: chosen by its name for writing, by what exists for reading."""

from __future__ import annotations

from pathlib import Path

from remora.errors import InvalidInput
from remora.storage.export.arrow import ParquetReader, ParquetWriter
from remora.storage.export.jsonl import JsonlReader, JsonlWriter
from remora.storage.export.transfer import ExportHeader, ExportReader, ExportWriter
from remora.storage.files import AtomicTarget

_NO_DIRECTORY = frozenset({".json", ".ndjson", ".parquet", ".gz", ".zip", ".zst", ".csv", ".db"})


def check_target(path: Path) -> Path:
    """`path`, if it can name an export.

    Raises:
        InvalidInput: it has the suffix of a file that is not ``.jsonl``.
    """
    if path.suffix in _NO_DIRECTORY:
        raise InvalidInput(
            "an export is a file that ends in .jsonl, or a directory of Parquet files, not "
            f"{path.name}"
        )
    return path


def open_writer(target: AtomicTarget, header: ExportHeader) -> ExportWriter:
    """A writer for the target: JSON lines if its name ends in ``.jsonl``, otherwise Parquet.

    Blocks.
    """
    if target.path.suffix == ".jsonl":
        return JsonlWriter(target.staging, header)
    return ParquetWriter(target.staging, header)


def open_reader(path: Path, *, max_bytes: int) -> ExportReader:
    """A reader of what is at `path`. Blocks.

    Args:
        path: of the export.
        max_bytes: most of one session, or of one user, in compressed files.

    Raises:
        InvalidInput: it does not exist, or cannot be read.
        InvalidExport: it is not an export.
    """
    try:
        return ParquetReader(path, max_bytes) if path.is_dir() else JsonlReader(path)
    except OSError as e:
        raise InvalidInput(f"{path} cannot be read: {e.strerror or e}") from e
