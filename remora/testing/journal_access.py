"""How the checks of a journal reach it: opening it, and what only its author can do to it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from remora.storage.ports import Journal

Capability: TypeAlias = Literal[
    "owners", "commit_numbers", "connections", "late_commits", "processes", "bytes"
]
"""What a journal can do beyond the contract of a single owner.

``owners``: opening takes the journal over, and a former owner stores nothing more.
``commit_numbers``: it counts its commits. ``connections``: its connection can break.
``late_commits``: the database can store a commit after its connection broke. ``processes``:
another process can open it. ``bytes``: `scrub` leaves no byte of what was deleted.
"""

CommitFate: TypeAlias = Literal["stored", "not_stored", "late"]
"""What becomes of a commit whose connection breaks.

``stored`` and ``not_stored``: the database stores it, or does not. ``late``: not yet; the database
stores it when `JournalAccess.release_late_commit` is called, unless the journal prevents that.
"""


class JournalAccess:
    """Opens a journal for its checks, and breaks it for them.

    Subclass it and override what your journal's capabilities need; `__call__` is always needed.
    """

    async def __call__(self) -> Journal:
        """Open the journal: an empty one the first time, the same one again each other time."""
        raise NotImplementedError

    def break_next_commit(self, journal: Journal, fate: CommitFate) -> None:
        """Break this owner's connection during its next commit, before it hears the answer.

        For ``connections``; the fate ``late`` for ``late_commits`` only.
        """
        raise NotImplementedError

    async def release_late_commit(self) -> None:
        """Let the database go on with the commit whose fate is ``late``.

        For ``late_commits``. Returns when it is stored or refused; does nothing if the journal has
        cancelled it.
        """
        raise NotImplementedError

    def process_target(self) -> tuple[str, str]:
        """Return the arguments by which another process opens the same journal.

        For ``processes``. It calls the function with the text, and awaits what that returns.

        Returns:
            ``module:function``, which that process can import, and a text.
        """
        raise NotImplementedError

    async def stored_bytes(self) -> bytes:
        """All bytes that the journal keeps anywhere, those of deleted rows included.

        For ``bytes``: of files, for instance, the contents, one after another.
        """
        raise NotImplementedError
