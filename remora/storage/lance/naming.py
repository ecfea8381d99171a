"""Which table a user is in, and what tables are called."""

from __future__ import annotations

TABLE_PREFIX = "mem_"
"""Every table's name begins with it."""


def table_of(user_key: str, shards: int) -> str:
    """The name of the table that holds a user's rows.

    Args:
        user_key: `remora.ids.user_key` of the user.
        shards: how many tables the users are spread over.

    Raises:
        ValueError: `user_key` is not a hexadecimal digest.
    """
    return f"{TABLE_PREFIX}{int(user_key[:8], 16) % shards:03d}"
