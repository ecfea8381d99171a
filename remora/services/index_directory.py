"""Which directory long-term memory is in, by the settings of the journal.

Vectors of two embedders cannot be compared, so another embedder means another directory. The
settings change in one transaction: after any crash, the next start finds either the old
directory in use and complete, or the new one in use, and how far its rebuild came.

============  =====================================================================
setting       value
============  =====================================================================
``embedder``  name and dimension of what makes the vectors
``longterm``  the name of the directory in use
``shards``    how many tables are in it
``reembed``   ``begin``, or a digest of the last actor rebuilt; empty: complete
``leftover``  old directories, which are removed once it is complete
============  =====================================================================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

import anyio.to_thread
import msgspec

from remora.errors import EmbedderChanged
from remora.logging import get_logger
from remora.storage.ports import Journal
from remora.storage.records import RecordSpec

__all__ = [
    "BEGIN",
    "IndexDirectory",
    "OldDirectory",
    "Place",
    "choose_directory",
    "expects_rows",
    "list_directories",
    "location_of",
    "remove_old",
    "request_rebuild",
]

_logger = get_logger(__name__)
_FIRST = "longterm"

BEGIN = "begin"
"""The value of ``reembed`` for a rebuild that starts from the beginning."""

Place: TypeAlias = Path | str
"""Where a store is: a directory, or an address that LanceDB understands."""


class OldDirectory(msgspec.Struct, frozen=True):
    """A directory: its name, what made its vectors, and how many tables are in it."""

    name: str
    embedder: str
    shards: int

    @property
    def dimension(self) -> int | None:
        """Of the vectors; None where there are none."""
        return int(self.embedder.rpartition("/")[2]) or None


class IndexDirectory(msgspec.Struct, frozen=True):
    """Which directory long-term memory is in.

    Attributes:
        name: the directory, in the memory directory or next to what `long_term.uri` names.
        shards: tables in it.
        whole: it is complete; otherwise it is being rebuilt.
        leftovers: old directories, the newest first; they are of no use once it is complete.
    """

    name: str
    shards: int
    whole: bool
    leftovers: tuple[OldDirectory, ...]


_decode_old = msgspec.json.Decoder(tuple[OldDirectory, ...]).decode


async def choose_directory(
    journal: Journal,
    base: Place | None,
    *,
    embedder: str,
    shards: int,
    reembed: bool,
    directory: Path | None,
) -> IndexDirectory:
    """Choose the directory for vectors of `embedder`, and note the choice.

    Args:
        journal: whose settings keep the choice.
        base: the memory directory, or `long_term.uri`; None for a store that is in neither.
        embedder: what makes the vectors.
        shards: tables in a directory that does not exist yet.
        reembed: the embedder may differ from the one before.
        directory: the memory directory, for the text of the error.

    Raises:
        EmbedderChanged: another embedder made the directory, and `reembed` is not set.
    """
    name = await journal.init_setting("longterm", _FIRST) or _FIRST
    found = await journal.init_setting("embedder", embedder) or embedder
    kept = int(await journal.init_setting("shards", str(shards)) or shards)
    old = await _old_directories(journal)
    if found != embedder:
        if not reembed:
            raise EmbedderChanged(
                f"long-term memory was embedded by {found}, and {embedder} is configured: vectors "
                "of two models cannot be compared. Either run "
                f"`remora reembed --dir {directory or 'DIR'}` (or open it with "
                "Runtime(…, reembed=True)), which rebuilds it from the journal, or set "
                "models.embedder back to what it was"
            )
        old = (OldDirectory(name, found, kept), *old)
        number = int(name.removeprefix(_FIRST).removeprefix("-") or 1)
        name, kept = f"{_FIRST}-{number + 1}", shards
        described = msgspec.json.encode(old).decode()
        await journal.change_settings(
            {
                "embedder": embedder,
                "longterm": name,
                "shards": str(kept),
                "reembed": BEGIN,
                "leftover": described,
            }
        )
        _logger.info("reembedding_begun", embedder=embedder, before=found, directory=name)
    elif isinstance(base, Path) and await _is_lost(journal, base / name):
        _logger.warning("long_term_lost", directory=name)
        await journal.change_settings({"reembed": BEGIN})
    return IndexDirectory(name, kept, not await journal.setting("reembed"), old)


async def _is_lost(journal: Journal, place: Path) -> bool:
    """The directory is gone, and held rows."""
    return not await anyio.to_thread.run_sync(place.exists) and await expects_rows(journal)


async def expects_rows(journal: Journal) -> bool:
    """Whether long-term memory holds rows, by the journal: messages, or recorded memories."""
    if any(indexed for _, indexed in await journal.indexed_through()):
        return True
    jobs = (*await journal.jobs(), *await journal.jobs(dead=True))
    waiting = {
        id_ for job in jobs if isinstance(job.payload, RecordSpec) for id_ in job.payload.ids
    }
    return (await journal.counts()).memories > len(waiting)


async def list_directories(journal: Journal) -> tuple[OldDirectory, ...]:
    """The directory in use, then the old ones; nothing if none was ever used."""
    name, embedder, shards = [
        await journal.setting(one) for one in ("longterm", "embedder", "shards")
    ]
    if embedder is None or shards is None:
        return ()
    return (OldDirectory(name or _FIRST, embedder, int(shards)), *await _old_directories(journal))


async def request_rebuild(journal: Journal) -> None:
    """Have the next start write what the journal has and long-term memory has not."""
    await journal.change_settings({"reembed": BEGIN})


async def _old_directories(journal: Journal) -> tuple[OldDirectory, ...]:
    kept = await journal.setting("leftover")
    return _decode_old(kept) if kept else ()


def location_of(base: Place, name: str) -> Place:
    """Where the directory called `name` is."""
    if isinstance(base, Path):
        return base / name
    if name == _FIRST:
        return base
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


async def remove_old(
    journal: Journal, base: Place | None, erase: Callable[[str], Awaitable[None]]
) -> None:
    """Remove the old directories. Those that cannot be removed stay noted, for the next start.

    Args:
        journal: whose settings name them.
        base: see `choose_directory`.
        erase: empties a store at an address.
    """
    old = await _old_directories(journal)
    if base is None or not old:
        return
    for one in old:
        place = location_of(base, one.name)
        if isinstance(place, Path):
            await anyio.to_thread.run_sync(_remove, place)
        else:
            await erase(place)
    await journal.change_settings({"leftover": ""})


def _remove(place: Path) -> None:
    # it loads every compressor; this runs in a thread, and hardly ever
    import shutil  # noqa: PLC0415

    if place.is_dir():
        shutil.rmtree(place)
