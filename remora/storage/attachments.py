"""Attachments: bytes next to the journal, each once for a user, by their digest.

They are durable before a message that refers to them is stored, and are removed with the last
message that does: nothing counts references. A user of whom messages are deleted is noted in the
journal's settings first, and swept afterwards: what none of their messages refers to is removed.
What an append is about to refer to is held, so that no sweep removes it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import anyio
import msgspec

from remora.errors import CommitFailed, OutcomeUnknown, OwnershipLost, RemoraError
from remora.ids import Digests, UserKey
from remora.logging import get_logger
from remora.messages import Entry
from remora.messages.attachments import find_blobs
from remora.runtime.locks import KeyedLocks
from remora.runtime.probes import probe
from remora.runtime.threads import run_in_thread
from remora.storage.files import make_private_directory, open_private
from remora.system.files import replace, sync_file, sync_path

ATTACHMENTS_KEY = "attachments_key"
"""The setting that has the key of the digests by which users' attachments are named."""
UNSWEPT = "attachments_unswept"
"""The setting that has these digests of users who are to be swept, as a JSON array."""
DIRECTORY = "attachments"
"""Where they are, next to the journal."""

Encoded = tuple[bytes, bytes | None]
"""A message's chat dict and metadata, in msgpack."""

_logger = get_logger(__name__)
_decode_names = msgspec.json.Decoder(list[str]).decode


class BlobStore(Protocol):
    """Where the bytes are; `name` is an owner's, of hexadecimal digits."""

    async def put(self, name: str, blobs: Mapping[bytes, bytes]) -> None:
        """Store these durably, those that are there excepted."""
        ...

    async def get(self, name: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """Return those of them that are there."""
        ...

    async def digests(self, name: str) -> set[bytes]:
        """All that the owner has."""
        ...

    async def remove(self, name: str, digests: Collection[bytes]) -> None:
        """Remove these, down to the bytes."""
        ...

    async def names(self) -> list[str]:
        """All owners."""
        ...


class Settings(Protocol):
    """The settings of a journal."""

    async def setting(self, name: str) -> str | None:
        """See `remora.storage.ports.Journal`."""
        ...

    async def init_setting(self, name: str, value: str) -> str:
        """See `remora.storage.ports.Journal`."""
        ...

    async def change_settings(self, settings: Mapping[str, str]) -> None:
        """See `remora.storage.ports.Journal`."""
        ...


class Attachments:
    """The attachments of a journal's users.

    Args:
        store: has the bytes.
        settings: of the journal.
        referring: a user's messages that refer to attachments.
        users: all users of the journal.
    """

    def __init__(
        self,
        store: BlobStore,
        settings: Settings,
        referring: Callable[[str], Awaitable[Iterable[Encoded]]],
        users: Callable[[], Awaitable[Iterable[str]]],
    ) -> None:
        self.store = store
        self._settings = settings
        self._referring = referring
        self._users = users
        self._digests: Digests | None = None
        self._locks = KeyedLocks()
        self._setting = anyio.Lock()
        self._held: Counter[tuple[str, bytes]] = Counter()
        self._doubtful: set[tuple[str, bytes, str]] = set()
        """Those of appends whose outcome nobody knows, with their sessions."""
        self._removing: Counter[str] = Counter()
        """Whose messages are being deleted now."""
        self._noted: Counter[str] = Counter()
        """How often each was noted."""

    async def name(self, user: str, *, new: bool = False) -> str | None:
        """Return what a user's attachments are named by.

        None if there are none and no `new` ones come.
        """
        if self._digests is None:
            key = await self._settings.setting(ATTACHMENTS_KEY)
            if key is None and new:
                key = await self._settings.init_setting(ATTACHMENTS_KEY, secrets.token_hex(16))
            if key is None:
                return None
            self._digests = Digests(key)
        return self._digests.user(user)

    @asynccontextmanager
    async def storing(
        self, user: str, session: str, blobs: Mapping[bytes, bytes]
    ) -> AsyncIterator[None]:
        """Store attachments, and keep them while a message is stored that refers to them.

        Raises:
            CommitFailed: they cannot be stored.
        """
        if not blobs:
            yield
            return
        name = await self.name(user, new=True)
        assert name is not None
        async with self._locks(name):
            self._held.update((name, digest) for digest in blobs)
            try:
                await self.store.put(name, blobs)
            except BaseException as e:
                self._release(name, blobs)
                if isinstance(e, OSError):
                    raise CommitFailed(f"an attachment cannot be stored: {e}") from e
                raise
        try:
            yield
        except BaseException as e:
            self._release(name, blobs)
            if isinstance(e, RemoraError) and not isinstance(e, (OutcomeUnknown, OwnershipLost)):
                await self._clean_up(user, name)
            else:  # the message may still be stored
                self._doubtful.update((name, digest, session) for digest in blobs)
            raise
        self._release(name, blobs)

    @asynccontextmanager
    async def holding(self, user: str, digests: Collection[bytes]) -> AsyncIterator[None]:
        """Keep attachments that are there while another message is stored that refers to them."""
        name = await self.name(user) if digests else None
        if name is None:
            yield
            return
        async with self._locks(name):
            self._held.update((name, digest) for digest in digests)
        try:
            yield
        finally:
            self._release(name, digests)

    def _release(self, name: str, digests: Iterable[bytes]) -> None:
        self._held.subtract((name, digest) for digest in digests)
        self._held = +self._held

    async def _clean_up(self, user: str, name: str) -> None:
        """Sweep after an append that was refused, whose error its caller is to get."""
        try:
            await self._sweep(name, user)
        except Exception:
            _logger.exception("attachments_not_swept")

    async def get(self, user: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """The bytes by their digests; what is missing, or damaged, is left out."""
        name = await self.name(user)
        if name is None or not digests:
            return {}
        found = await self.store.get(name, digests)
        if missing := len(set(digests)) - len(found):
            probe("attachment_missing")
            _logger.error("attachments_missing", actor=UserKey(user), count=missing)
        return found

    async def all(self) -> AsyncIterator[tuple[str, bytes, bytes]]:
        """Every attachment: whose it is, its digest, and its bytes."""
        for user in await self._users():
            name = await self.name(user)
            if name is None:
                return
            for digest in sorted(await self.store.digests(name)):
                for data in (await self.store.get(name, [digest])).values():
                    yield user, digest, data

    async def add(self, user: str, digest: bytes, data: bytes) -> None:
        """Store an attachment that messages refer to."""
        name = await self.name(user, new=True)
        assert name is not None
        await self.store.put(name, {digest: data})

    # -- removing ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def removing(
        self, users: Iterable[str], session: str | None = None, *, whole: bool = False
    ) -> AsyncIterator[None]:
        """Messages of these users are deleted within: `sweep` looks at them afterwards.

        Args:
            users: who they are.
            session: all messages of this session are.
            whole: all that they have is.
        """
        wanted = {name for user in users if (name := await self.name(user)) is not None}
        wanted.intersection_update(await self.store.names() if wanted else ())
        self._removing.update(wanted)
        self._noted.update(wanted)
        try:
            if wanted:
                await self._change_unswept(lambda unswept: unswept | wanted)
            yield
            if whole or session is not None:
                self._doubtful = {
                    one
                    for one in self._doubtful
                    if one[0] not in wanted or not (whole or one[2] == session)
                }
        finally:
            self._removing.subtract(wanted)
            self._removing = +self._removing

    async def sweep(self) -> None:
        """Remove what no message refers to any more, of the users who were noted."""
        for name in await self._unswept():
            if name in self._removing:
                continue  # who deletes its messages sweeps it
            times = self._noted[name]
            await self._sweep(name)
            if self._noted[name] == times:
                await self._change_unswept(partial(_without, name))

    async def clean(self, user: str) -> None:
        """Remove what none of a user's messages refers to any more."""
        name = await self.name(user)
        if name is not None:
            await self._sweep(name, user)

    async def _unswept(self) -> set[str]:
        setting = await self._settings.setting(UNSWEPT)
        with suppress(msgspec.DecodeError):
            return set(_decode_names(setting)) if setting else set()
        return set()

    async def _change_unswept(self, change: Callable[[set[str]], set[str]]) -> None:
        async with self._setting:
            before = await self._unswept()
            after = change(before)
            if after != before:
                await self._settings.change_settings({UNSWEPT: encode_names(after)})

    async def _sweep(self, name: str, user: str | None = None) -> None:
        async with self._locks(name):
            there = await self.store.digests(name)
            kept = {digest for one, digest, *_ in (*self._held, *self._doubtful) if one == name}
            if there and user is None:
                for one in await self._users():
                    if await self.name(one) == name:
                        user = one
                        break
            if there and user is not None:
                kept |= await self.referred(user)
            gone = there - kept
            if gone:
                probe("attachments_removed")
            await self.store.remove(name, gone)

    async def referred(self, user: str) -> set[bytes]:
        """The digests of all attachments that a user's messages refer to."""
        messages = await self._referring(user)
        return await run_in_thread(
            lambda: {blob.digest for one in messages for blob in find_blobs(*one)}
        )


def _without(name: str, names: set[str]) -> set[str]:
    return names - {name}


def encode_names(names: Collection[str]) -> str:
    """The value of the setting `UNSWEPT`."""
    return msgspec.json.encode(sorted(names)).decode() if names else ""


class BlobFiles:
    """Attachments in files: ``attachments/OWNER/DIGEST``, for this account alone.

    Args:
        directory: that of the journal.
        sync: they are on the disk when they are stored (G3).
    """

    def __init__(self, directory: Path, *, sync: bool) -> None:
        self._directory = directory / DIRECTORY
        self._sync = sync

    async def put(self, name: str, blobs: Mapping[bytes, bytes]) -> None:
        """See `BlobStore`."""
        await run_in_thread(self._put, name, blobs)

    def _put(self, name: str, blobs: Mapping[bytes, bytes]) -> None:
        place = self._directory / name
        for one in (self._directory, place):
            if make_private_directory(one) and self._sync:
                sync_path(one.parent)
        for digest, data in blobs.items():
            path = place / digest.hex()
            if _read_whole(path, digest) is None:
                self._write(path, data)
        if self._sync:
            sync_path(place)

    def _write(self, path: Path, data: bytes) -> None:
        staged = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            descriptor = open_private(staged, os.O_WRONLY | os.O_EXCL)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                if self._sync:
                    sync_file(file.fileno())
            replace(staged, path)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise

    async def get(self, name: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """See `BlobStore`."""
        return await run_in_thread(self._get, name, digests)

    def _get(self, name: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        found = {}
        for digest in digests:
            data = _read_whole(self._directory / name / digest.hex(), digest)
            if data is not None:
                found[digest] = data
        return found

    async def digests(self, name: str) -> set[bytes]:
        """See `BlobStore`."""
        return await run_in_thread(self._list, name)

    def _list(self, name: str) -> set[bytes]:
        found = set()
        with suppress(FileNotFoundError):
            for path in (self._directory / name).iterdir():
                with suppress(ValueError):
                    found.add(bytes.fromhex(path.name))
        return found

    async def remove(self, name: str, digests: Collection[bytes]) -> None:
        """See `BlobStore`."""
        await run_in_thread(self._remove, name, digests)

    def _remove(self, name: str, digests: Collection[bytes]) -> None:
        place = self._directory / name
        for digest in digests:
            (place / digest.hex()).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            for path in place.iterdir():
                if "." in path.name:  # a process died while it wrote it
                    path.unlink(missing_ok=True)
            with suppress(OSError):
                place.rmdir()
            if self._sync:
                sync_path(self._directory)

    async def names(self) -> list[str]:
        """See `BlobStore`."""
        return await run_in_thread(list_names, self._directory.parent)


def _read_whole(path: Path, digest: bytes) -> bytes | None:
    """The bytes of a file; None if it is missing, or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data if sha256(data).digest() == digest else None


class BlobsInMemory:
    """Attachments in memory."""

    def __init__(self) -> None:
        self._owners: dict[str, dict[bytes, bytes]] = {}

    async def put(self, name: str, blobs: Mapping[bytes, bytes]) -> None:
        """See `BlobStore`."""
        self._owners.setdefault(name, {}).update(blobs)

    async def get(self, name: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """See `BlobStore`."""
        owned = self._owners.get(name, {})
        return {digest: owned[digest] for digest in digests if digest in owned}

    async def digests(self, name: str) -> set[bytes]:
        """See `BlobStore`."""
        return set(self._owners.get(name, ()))

    async def remove(self, name: str, digests: Collection[bytes]) -> None:
        """See `BlobStore`."""
        owned = self._owners.get(name, {})
        for digest in digests:
            owned.pop(digest, None)
        if not owned:
            self._owners.pop(name, None)

    async def names(self) -> list[str]:
        """See `BlobStore`."""
        return sorted(self._owners)


def take_blobs(entries: Iterable[Entry]) -> tuple[tuple[Entry, ...], dict[bytes, bytes]]:
    """Messages on their way in without the bytes that came with them, and these."""
    blobs: dict[bytes, bytes] = {}
    left = []
    for entry in entries:
        if entry.blobs is not None:
            blobs.update(entry.blobs)
            entry = msgspec.structs.replace(entry, blobs=None)  # noqa: PLW2901
        left.append(entry)
    return tuple(left), blobs


def copy_files(source: Path, target: Path, names: Mapping[str, str]) -> int:
    """Copy attachments from one journal's directory to another's, those that are there excepted.

    Args:
        source: the directory of the one journal.
        target: that of the other.
        names: the owners' names in the other, by those in the one.

    Returns:
        How many files were copied.
    """
    count = 0
    for old, new in names.items():
        place = source / DIRECTORY / old
        if not place.is_dir():
            continue
        make_private_directory(target / DIRECTORY)
        make_private_directory(target / DIRECTORY / new)
        for path in place.iterdir():
            copy = target / DIRECTORY / new / path.name
            if "." not in path.name and not copy.exists():
                with suppress(FileNotFoundError):  # erased in the meantime
                    shutil.copyfile(path, copy)
                    count += 1
    return count


def list_names(directory: Path) -> list[str]:
    """The owners of the attachments next to a journal."""
    with suppress(FileNotFoundError):
        return sorted(one.name for one in (directory / DIRECTORY).iterdir() if one.is_dir())
    return []
