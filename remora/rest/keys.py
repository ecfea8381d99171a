"""API keys: each is of one tenant, and only its digest is stored.

A key is 32 random bytes, so one pass of SHA-256 protects it: there is nothing to guess.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from remora.errors import InvalidInput
from remora.logging import get_logger
from remora.storage.files import AtomicTarget
from remora.system.files import HAS_MODES, account
from remora.system.locks import lock_file, open_to_lock

_logger = get_logger(__name__)

_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LINE = re.compile(r"([A-Za-z0-9_-]{1,64}) ([0-9a-f]{64})")
_PREFIX = "remora_"
_SHOWN = 8


class StoredKey(NamedTuple):
    """A line of the file.

    Attributes:
        tenant: whose key it is.
        digest: SHA-256 of the key, in hexadecimal digits.
    """

    tenant: str
    digest: str

    @property
    def name(self) -> str:
        """Return what a person calls the key: the first digits of its digest."""
        return self.digest[:_SHOWN]


def read_keys(file: Path) -> list[StoredKey]:
    """The keys of a file, in its order.

    Raises:
        InvalidInput: the file cannot be read, others can read it, or a line is not a key.
    """
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # to read a pipe could take for ever
            raise InvalidInput(
                f"{file} is not a regular file: keys are in one that remora keys makes"
            )
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as e:
        raise InvalidInput(
            f"there is no file of keys {file}: remora keys FILE --add TENANT makes one"
        ) from e
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidInput(f"the file of keys {file} cannot be read: {e}") from e
    if HAS_MODES and is_open(status.st_mode, status.st_uid, account()):
        raise InvalidInput(f"{file} can be read or changed by other accounts: chmod 600 {file}")
    keys = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise InvalidInput(
                f"line {number} of {file} is not a key: remora keys FILE --add TENANT writes one"
            )
        keys.append(StoredKey(found[1], found[2]))
    return keys


def is_open(mode: int, owner: int, account: int) -> bool:
    """Return whether accounts that have no business with a file of keys may read or change it.

    One of root's may be readable for its group: root says who is in it, and a server under another
    account has no other way to it. Kubernetes mounts the files of a Secret so.
    """
    others = stat.S_IRWXG | stat.S_IRWXO
    if owner == 0 != account:
        others &= ~stat.S_IRGRP
    return bool(mode & others)


def add_key(file: Path, tenant: str) -> str:
    """Make a key for a tenant, and store its digest; the key itself is stored nowhere.

    Raises:
        InvalidInput: the tenant's name is not allowed, or the file cannot be used.
    """
    if not _TENANT.fullmatch(tenant):
        raise InvalidInput("a tenant's name has 1 to 64 letters, digits, - and _")
    key = _PREFIX + secrets.token_urlsafe(32)
    with _changing(file) as path:
        keys = read_keys(path) if path.exists() else []
        _write(path, [*keys, StoredKey(tenant, _digest(key))])
    return key


def remove_key(file: Path, name: str) -> StoredKey:
    """Take a key out of the file; a server that runs notices within a second.

    Raises:
        InvalidInput: no key, or more than one, has this name, or the file cannot be used.
    """
    with _changing(file) as path:
        keys = read_keys(path)
        found = [key for key in keys if name and key.digest.startswith(name)]
        if len(found) != 1:
            many = len(found)
            raise InvalidInput(f"{many} keys of {file} have a digest that begins with {name!r}")
        _write(path, [key for key in keys if key is not found[0]])
    return found[0]


class KeyFile:
    """The keys that a server knows.

    Args:
        file: it is read again when it has changed.

    Raises:
        InvalidInput: see `read_keys`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._version = self._look()
        self._keys = read_keys(file)

    def refresh(self) -> None:
        """Read the file again if it was changed; if it cannot be read, the former keys stay valid.

        The log says so: an error while the file is edited must not lock everybody out.
        """
        version = self._look()
        if version == self._version:
            return
        self._version = version
        try:
            self._keys = read_keys(self._file)
        except InvalidInput as e:
            _logger.warning("keys_unreadable", error=str(e))

    def find_tenant(self, key: str) -> str | None:
        """Whose key it is; None for nobody's. It compares with every key, in the same time."""
        digest, found = _digest(key), None
        for one in self._keys:
            if hmac.compare_digest(one.digest, digest):
                found = one.tenant
        return found

    def _look(self) -> tuple[int, int, int, int] | None:
        try:
            seen = self._file.stat()
        except OSError:
            return None
        # the time of the last chmod, too: it makes a file usable
        return seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, seen.st_size


def _digest(key: str) -> str:
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


@contextmanager
def _changing(file: Path) -> Iterator[Path]:
    """The file that a path leads to, which one process at a time changes; a link stays a link.

    Raises:
        InvalidInput: there is no such directory.
    """
    path = file.resolve()
    try:
        directory = open_to_lock(path.parent)  # the file itself is replaced
    except OSError as e:
        raise InvalidInput(f"{file} cannot be written: {e.strerror or e}") from e
    if directory is None:
        yield path
        return
    try:
        lock_file(directory, wait=True)
        yield path
    finally:
        os.close(directory)


def _write(file: Path, keys: list[StoredKey]) -> None:
    text = "".join(f"{key.tenant} {key.digest}\n" for key in keys)
    target = AtomicTarget(file, overwrite=True)
    try:
        target.staging.touch(mode=0o600)
        target.staging.write_text(text, encoding="utf-8")
        target.commit()
    except OSError as e:
        target.staging.unlink(missing_ok=True)
        raise InvalidInput(f"{file} cannot be written: {e.strerror or e}") from e
