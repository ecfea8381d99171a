"""Arrow tables as bytes, for another process."""

from __future__ import annotations

from typing import Any


def table_to_bytes(table: Any) -> bytes:
    """A `pyarrow.Table` as one stream of Arrow's format for processes."""
    import pyarrow as pa  # noqa: PLC0415

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def table_from_bytes(data: bytes) -> Any:
    """The inverse of `table_to_bytes`.

    Raises:
        ValueError: it is something else.
    """
    import pyarrow as pa  # noqa: PLC0415

    try:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_all()
    except pa.ArrowException as e:
        raise ValueError(f"not an Arrow table: {e}") from e
