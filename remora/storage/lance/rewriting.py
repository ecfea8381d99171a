"""Copying a table's rows, sorted by user, into its next version.

The order is found from a few narrow columns, and rows are copied some thousands at a time: a table
of 165 000 rows is 300 MB, and sorting it in memory would take three times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from remora.runtime.threads import run_in_thread
from remora.storage.lance.rows import ORDERED, RowFormat

__all__ = ["copy_rows", "sorted_row_ids"]

_ROWS_AT_ONCE = 16_384  # 30 MB with their vectors


async def sorted_row_ids(
    source: Any, form: RowFormat, drop: Callable[[dict[str, list[str]]], list[bool]] | None
) -> tuple[list[int], int]:
    """The ids of the rows to copy, in their new order, and how many rows are left out.

    Args:
        source: a handle on a version of the table.
        form: the columns.
        drop: marks rows to leave out; see `RowFormat.order`.
    """
    found = await source.query().select(list(ORDERED)).with_row_id().to_arrow()
    order = await run_in_thread(form.order, found, drop)
    return order, len(found) - len(order)


async def copy_rows(source: Any, target: Any, form: RowFormat, row_ids: Sequence[int]) -> None:
    """Replace the target's rows by some of the source's, in one fragment, without indices.

    Args:
        source: a handle that stays at the version that the ids are of.
        target: another handle on the table.
        form: the columns.
        row_ids: the rows, in their new order.
    """
    for start in range(0, max(len(row_ids), 1), _ROWS_AT_ONCE):
        some = row_ids[start : start + _ROWS_AT_ONCE]
        found = await source.take_row_ids(list(some)).with_row_id().to_arrow()
        rows = await run_in_thread(form.rewritten, found, some)
        # without parallelism there is one fragment
        await target.add(rows, mode="append" if start else "overwrite", write_parallelism=1)
    if len(row_ids) > _ROWS_AT_ONCE:
        await target.optimize()  # keeps the order; nothing is left to compact
