"""Which directory long-term memory is in, by the settings of the journal.

Vectors of two embedders cannot be compared, so another embedder means another directory. The
settings change in one transaction: after any crash, the next start finds either the old
directory in use and complete, or the new one in use, and how far its rebuild came.

===============  =====================================================================
setting          value
===============  =====================================================================
``embedder``     name and dimension of what makes the vectors
``longterm``     the name of the directory in use
``shards``       how many tables are in it
``digest_keys``  the keys of its users' digests, and of those in old directories
``reembed``      ``begin``, or a digest of the last actor rebuilt; empty: complete
``leftover``     old directories, which are removed once it is complete
===============  =====================================================================

Each new directory has a random key of its own. A directory that was made before there were keys has
the empty key; it keeps it until it is rebuilt, which needs no embedder, because its vectors are
kept (`services/rebuild.py`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

import msgspec

from remora.errors import DirectoryUnusable, EmbedderChanged
from remora.ids import Digests
from remora.logging import get_logger
from remora.messages import without_surrogates
from remora.runtime.threads import run_in_thread
from remora.storage.erasure_notes import DIGEST_KEYS, decode_digest_keys, encode_digest_keys
from remora.storage.lance.versions import versions_setting
from remora.storage.ports import Journal
from remora.storage.records import RecordSpec

_logger = get_logger(__name__)
FIRST_DIRECTORY = "longterm"
"""Where the tables are until long-term memory is rebuilt."""

BEGIN = "begin"
"""The value of ``reembed`` for a rebuild that starts from the beginning."""

Place: TypeAlias = Path | str
"""Where a store is: a directory, or an address that LanceDB understands."""


class TableDirectory(msgspec.Struct, frozen=True):
    """A directory: its name, what made its vectors, and how many tables are in it.

    `key` is that of its digests, which nothing may show.
    """

    name: str
    embedder: str
    shards: int
    key: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.embedder!r}, {self.shards})"

    @property
    def digests(self) -> Digests:
        """Return what its users are found by."""
        return Digests(self.key)

    @property
    def dimension(self) -> int | None:
        """Of the vectors; None where there are none."""
        return int(self.embedder.rpartition("/")[2]) or None


class IndexDirectory(msgspec.Struct, frozen=True):
    """Which directory long-term memory is in.

    Attributes:
        used: the directory, in the memory directory or next to what `long_term.uri` names.
        whole: it is complete; otherwise it is being rebuilt.
        leftovers: old directories, the newest first; they are of no use once it is complete.
    """

    used: TableDirectory
    whole: bool
    leftovers: tuple[TableDirectory, ...]


_decode_old = msgspec.json.Decoder(tuple[TableDirectory, ...]).decode


async def choose_directory(
    journal: Journal,
    base: Place | None,
    *,
    embedder: str,
    shards: int,
    reembed: bool,
    directory: Path | None,
    rng: random.Random,
) -> IndexDirectory:
    """Choose the directory for vectors of `embedder`, and note the choice.

    Args:
        journal: whose settings keep the choice.
        base: the memory directory, or `long_term.uri`; None for a store that is in neither, whose
            digests have no key.
        embedder: what makes the vectors.
        shards: tables in a directory that does not exist yet.
        reembed: rebuild it if the embedder is not the one before, or if its digests have no key.
        directory: the memory directory, for the text of the error.
        rng: makes the key of a new directory.

    Raises:
        EmbedderChanged: another embedder made the directory, and `reembed` is not set.
    """
    found = await list_directories(journal, shards)
    used = (
        found[0]
        if found
        else TableDirectory(FIRST_DIRECTORY, embedder, shards, draw_key(base, rng))
    )
    leftovers, before, rebuild = found[1:], used, False
    if used.embedder != embedder and not reembed:
        raise EmbedderChanged(
            f"long-term memory was embedded by {used.embedder}, and {embedder} is configured: "
            "vectors of two models cannot be compared. Either rebuild it from the journal with "
            f"{embedder}: `remora reembed --dir {directory or 'DIR'}`, with the --config of this "
            "call if it has one, or Runtime(…, reembed=True). Or set models.embedder back to what "
            "it was"
        )
    gone = isinstance(base, Path) and not await run_in_thread((base / used.name).exists)
    unkeyed = not used.key and base is not None
    if used.embedder != embedder or (reembed and unkeyed and not gone):
        number = int(used.name.removeprefix(FIRST_DIRECTORY).removeprefix("-") or 1) + 1
        leftovers, rebuild = (used, *leftovers), True
        used = TableDirectory(f"{FIRST_DIRECTORY}-{number}", embedder, shards, draw_key(base, rng))
    elif gone:
        if unkeyed:  # there is no row with the empty key
            used = msgspec.structs.replace(used, key=draw_key(base, rng))
        rebuild = await expects_rows(journal)
        if rebuild:
            _logger.warning("long_term_lost", directory=used.name)
    keys = [used.key, *(one.key for one in leftovers), *([""] if base is None else [])]
    noted = decode_digest_keys(await journal.setting(DIGEST_KEYS))
    if rebuild or (used, *leftovers) != found or not set(keys) <= set(noted):
        await _note_choice(journal, used, leftovers, keys, rebuild=rebuild)
    if used.name != before.name:
        _logger.info(
            "reembedding_begun", embedder=embedder, before=before.embedder, directory=used.name
        )
    return IndexDirectory(used, not await journal.setting("reembed"), leftovers)


def draw_key(base: Place | None, rng: random.Random) -> str:
    """A key of 256 bits; none for a store whose erasures are asked for by digests without one."""
    return "" if base is None else f"{rng.getrandbits(256):064x}"


async def _note_choice(
    journal: Journal,
    used: TableDirectory,
    leftovers: Sequence[TableDirectory],
    keys: Sequence[str],
    *,
    rebuild: bool,
) -> None:
    """Write the settings, in one transaction."""
    settings = {
        "embedder": used.embedder,
        "longterm": used.name,
        "shards": str(used.shards),
        DIGEST_KEYS: encode_digest_keys(keys),
    }
    if leftovers:
        settings["leftover"] = msgspec.json.encode(leftovers).decode()
    if rebuild:
        settings["reembed"] = BEGIN
    await journal.change_settings(settings)


async def expects_rows(journal: Journal) -> bool:
    """Return whether long-term memory holds rows, by the journal."""
    if any(indexed for _, indexed in await journal.indexed_through()):
        return True
    jobs = (*await journal.jobs(), *await journal.jobs(dead=True))
    waiting = {
        id_ for job in jobs if isinstance(job.payload, RecordSpec) for id_ in job.payload.ids
    }
    return (await journal.counts()).memories > len(waiting)


async def list_directories(journal: Journal, default_shards: int = 0) -> tuple[TableDirectory, ...]:
    """The directory in use, then the old ones; nothing if none was ever used.

    `default_shards`: tables in it where that was not noted; 0 for no such directory.
    """
    name, embedder, shards, keys = [
        await journal.setting(one) for one in ("longterm", "embedder", "shards", DIGEST_KEYS)
    ]
    tables = int(shards or default_shards)
    if embedder is None or not tables:
        return ()
    used = TableDirectory(name or FIRST_DIRECTORY, embedder, tables, decode_digest_keys(keys)[0])
    return (used, *await _old_directories(journal))


async def request_rebuild(journal: Journal) -> None:
    """Have the next start write what the journal has and long-term memory has not."""
    await journal.change_settings({"reembed": BEGIN})


async def _old_directories(journal: Journal) -> tuple[TableDirectory, ...]:
    kept = await journal.setting("leftover")
    return _decode_old(kept) if kept else ()


def location_of(base: Place, name: str) -> Place:
    """Where the directory called `name` is."""
    if isinstance(base, Path):
        return base / name
    if name == FIRST_DIRECTORY:
        return base
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def check_location(base: Path) -> None:
    """Check that LanceDB can have its files in this directory.

    Raises:
        DirectoryUnusable: its path has bytes that are no UTF-8, or control characters.
    """
    text = str(base)
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        problem = "control characters"
    elif without_surrogates(text) != text:
        problem = "bytes that are not UTF-8"
    else:
        return
    raise DirectoryUnusable(
        f"{text!r} cannot be used as a memory directory: its path has {problem}, which long-term "
        "memory does not take; use another one, or long_term.enabled = false",
        path=base,
    )


def check_temporary() -> None:
    """Check that LanceDB's temporary files have a place: it takes no other if TMPDIR names none.

    Raises:
        DirectoryUnusable: it is no directory, or cannot be written.
    """
    given = os.environ.get("TMPDIR")
    if given and not (os.path.isdir(given) and os.access(given, os.W_OK | os.X_OK)):  # noqa: PTH112
        raise DirectoryUnusable(
            f"TMPDIR names {given!r}, which is no directory that can be written, and long-term "
            "memory needs one for temporary files: make it, or name another",
            path=Path(given),
        )


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
            await run_in_thread(_remove, place)
        else:
            await erase(place)
    used, *_ = decode_digest_keys(await journal.setting(DIGEST_KEYS))
    versions = {versions_setting(one.name): "" for one in old if not isinstance(base, Path)}
    await journal.change_settings(
        {"leftover": "", DIGEST_KEYS: encode_digest_keys([used]), **versions}
    )


def _remove(place: Path) -> None:
    # it loads every compressor; this runs in a thread, and hardly ever
    import shutil  # noqa: PLC0415

    if place.is_dir():
        shutil.rmtree(place)
