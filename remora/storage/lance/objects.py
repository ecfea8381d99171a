"""Objects under an address: what LanceDB's tables consist of where there is no file system.

LanceDB can neither list nor remove single files of a table, and says nothing of a bucket that it
cannot use until it is written to. `obstore` can: it is the same client that LanceDB has inside, so
both take the same options, and find the same credentials in the environment.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import anyio

from remora.config import ObjectStoreConfig
from remora.errors import ConfigError, LongTermError
from remora.system.sockets import is_loopback

_SCHEMES = frozenset({"s3", "gs", "az"})
_OWNER = "remora.json"
"""The object that says whose tables lie at an address."""
CHECK_S = 5.0
"""How long the start of an owner waits for the store."""
_REMOVED_AT_ONCE = 1_000
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_NOT_IMPLEMENTED = "501 Not Implemented"
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_UNCONDITIONAL = (
    "it does not honour conditional writes (If-None-Match: *), so two writers would destroy each "
    "other's commits. Use a store that does (Amazon S3, Ceph, MinIO, R2), or a directory"
)


def is_object_store(address: object) -> bool:
    """Return whether long-term memory at this address is at an object store."""
    return isinstance(address, str) and address.partition("://")[0] in _SCHEMES


def lance_options(config: ObjectStoreConfig) -> dict[str, str]:
    """LanceDB's storage options; what is not configured is left to the environment.

    Raises:
        ConfigError: they do not go together.
    """
    key, secret = config.access_key_id.reveal(), config.secret_access_key.reveal()
    if bool(key) is not bool(secret):
        raise ConfigError(
            "long_term.object_store.access_key_id and secret_access_key go together: set both, or "
            "neither, and the environment's are used",
            key="long_term.object_store.access_key_id",
        )
    options = {
        "aws_access_key_id": key,
        "aws_secret_access_key": secret,
        "aws_session_token": config.session_token.reveal(),
        "aws_region": config.region,
        "aws_endpoint": config.endpoint,
    }
    if config.endpoint:
        parts = urlsplit(config.endpoint)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(
                "long_term.object_store.endpoint must be like https://host:port, not "
                f"{config.endpoint!r:.80}",
                key="long_term.object_store.endpoint",
            )
        if parts.scheme == "http":
            if not (config.allow_http or is_loopback(parts.hostname)):
                raise ConfigError(
                    f"long_term.object_store.endpoint is {config.endpoint!r:.80}: texts and keys "
                    "would cross the network in the clear. Use https://, or set "
                    "long_term.object_store.allow_http",
                    key="long_term.object_store.endpoint",
                )
            options["allow_http"] = "true"
    return {name: value for name, value in options.items() if value}


class ObjectStore:
    """The objects under an address.

    Args:
        address: of an object store, with a prefix.
        config: how it is reached.

    Raises:
        ConfigError: the options or the address cannot be used, or `obstore` is not installed.
    """

    def __init__(self, address: str, config: ObjectStoreConfig) -> None:
        options = lance_options(config)
        try:
            self._obstore = importlib.import_module("obstore")
            stores = importlib.import_module("obstore.store")
            self._errors = importlib.import_module("obstore.exceptions")
        except ImportError as e:
            raise ConfigError(
                'long_term.uri names an object store, which needs pip install "remora[s3]"',
                key="long_term.uri",
            ) from e
        client: dict[str, Any] = {"timeout": "30s", "connect_timeout": "5s"}
        # options of the client hide the variable, which LanceDB reads as well
        allowed = options.pop("allow_http", "") or os.environ.get("AWS_ALLOW_HTTP", "")
        if allowed.lower() in {"1", "true"}:
            client["allow_http"] = True
        try:
            self._store = stores.from_url(
                address,
                config=options if address.startswith("s3:") else {},
                client_options=client,
                retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=10)},
            )
        except Exception:  # obstore raises several; each quotes the address
            problem = True
        else:
            problem = False
        if problem:  # outside of `except`: the cause quotes the address
            raise ConfigError(
                "long_term.uri is no address of an object store: it must be like s3://bucket/prefix",
                key="long_term.uri",
            )

    async def check(self) -> None:
        """Check that there is such a bucket, whose prefix may be listed; nothing is written.

        Raises:
            ConfigError: it cannot be used; the text says what to do.
            LongTermError: it cannot be reached, or does not answer in time.
        """
        with self._mapped("checking the bucket"), anyio.fail_after(CHECK_S):
            await self._obstore.list(self._store, prefix=_OWNER).collect_async()

    async def claim(self, memory: str) -> None:
        """Check that the bucket can be used, and that no other memory's tables lie there.

        Args:
            memory: names the memory.

        Raises:
            ConfigError: it cannot be used; the text says what to do.
            LongTermError: it cannot be reached, or does not answer in time.
        """
        mark = b'{"memory":"%s"}\n' % memory.encode()
        with self._mapped("checking the bucket"), anyio.fail_after(CHECK_S):
            if await self._create(_OWNER, mark) and await self._create(_OWNER, mark):
                raise ConfigError(
                    f"long_term.uri cannot be used: {_UNCONDITIONAL}", key="long_term.uri"
                )
            if (found := await self.read(_OWNER)) != mark:
                raise ConfigError(
                    "long_term.uri has another memory's tables: this memory is "
                    f"{memory}, and {_OWNER} there says {found[:80].decode(errors='replace')!r}. "
                    "Use another prefix, or remove what is there",
                    key="long_term.uri",
                )
            await self.sizes(_OWNER)
            await self.remove([f"{_OWNER}.check"])  # it does not exist

    async def _create(self, name: str, data: bytes) -> bool:
        """Write an object unless it exists; whether it was written."""
        try:
            await self._obstore.put_async(self._store, name, data, mode="create")
        except self._errors.AlreadyExistsError:
            return False
        return True

    async def read(self, name: str) -> bytes:
        """An object's content.

        Raises:
            FileNotFoundError: there is no such object.
            OSError: it cannot be read.
        """
        try:
            found = await self._obstore.get_async(self._store, name)
            return bytes(await found.bytes_async())
        except (FileNotFoundError, self._errors.NotFoundError):
            raise FileNotFoundError(f"Not found: {name}") from None
        except self._errors.BaseError as e:
            raise self._as_os_error(e) from None

    async def sizes(self, prefix: str) -> Mapping[str, int]:
        """Objects whose names begin with `prefix`, and their sizes in bytes.

        Raises:
            OSError: they cannot be listed.
        """
        try:
            found = await self._obstore.list(self._store, prefix=prefix).collect_async()
        except self._errors.BaseError as e:
            raise self._as_os_error(e) from None
        return {str(one["path"]): int(one["size"]) for one in found}

    async def remove(self, names: Collection[str]) -> None:
        """Remove objects; those that do not exist are no error.

        Raises:
            OSError: some may be left.
        """
        ordered = sorted(names)
        for start in range(0, len(ordered), _REMOVED_AT_ONCE):
            try:
                await self._obstore.delete_async(
                    self._store, ordered[start : start + _REMOVED_AT_ONCE]
                )
            except (FileNotFoundError, self._errors.NotFoundError):
                continue
            except self._errors.BaseError as e:
                raise self._as_os_error(e) from None

    def _as_os_error(self, error: BaseException) -> OSError:
        """The same without the address; `storage/lance/errors.py` knows the words."""
        denied = self._errors.PermissionDeniedError, self._errors.UnauthenticatedError
        if isinstance(error, denied):
            return PermissionError(f"Permission denied: {_code(error)}")
        return OSError(f"Connection failed: {_code(error)}")

    @contextmanager
    def _mapped(self, doing: str) -> Iterator[None]:
        """Turn what `obstore` raises into an error that says what to do, without the address."""
        problem, retryable = "", False
        try:
            yield
        except (FileNotFoundError, self._errors.NotFoundError) as e:
            problem = _missing(e)
        except (
            PermissionError,
            self._errors.PermissionDeniedError,
            self._errors.UnauthenticatedError,
        ) as e:
            problem = (
                f"the bucket refuses these credentials ({_code(e)}): they need to list the prefix, "
                "and to get, put and delete objects below it"
            )
        except (OSError, self._errors.BaseError) as e:
            problem, retryable = f"it cannot be reached ({_code(e)})", True
            if _NOT_IMPLEMENTED in str(e):
                problem, retryable = _UNCONDITIONAL, False
            elif _code(e) in _NO_BUCKET:  # a list says no more than that it failed
                problem, retryable = _missing(e), False
        if not problem:
            return
        # outside of `except`: the cause quotes the address
        if retryable:
            raise LongTermError(f"long-term memory failed {doing}: {problem}", retryable=True)
        raise ConfigError(f"long_term.uri cannot be used: {problem}", key="long_term.uri")


def _missing(error: BaseException) -> str:
    return f"there is no such bucket ({_code(error)}): create it, or correct long_term.uri"


def _code(error: BaseException) -> str:
    """Return what a server says in a word, or the kind of error."""
    found = _CODE.search(str(error))
    return found[1] if found else type(error).__name__
