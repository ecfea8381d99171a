"""Rows in which text that is stored as bytes is text again; see `remora.storage.decoding`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def summary_texts(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of `SUMMARY_COLUMNS`."""
    return (*row[:6], _text(row[6]), _text(row[7]), *row[8:10], _text(row[10]), *row[11:])


def state_item_texts(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of `STATE_ITEM_COLUMNS`."""
    return (*row[:2], _text(row[2]), *row[3:])


def memory_texts(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of `MEMORY_COLUMNS`."""
    return (*row[:3], _text(row[3]), _text(row[4]), _text(row[5]), *row[6:])


def job_texts(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of `CHECKED_JOB_COLUMNS`."""
    return (*row[:8], _text(row[8]), *row[9:])


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")  # what differs is damage of one row
