"""Runtimes for the shards of a memory, made from one that was not opened."""

from __future__ import annotations

from typing import Any

import msgspec

from remora.api.build import Internals
from remora.api.lifetime import Lifetime
from remora.api.options import Options, SharedModels
from remora.api.runtime import Runtime
from remora.config import Config, Secret
from remora.errors import ConfigError
from remora.models.ports import Embedder
from remora.services.index_directory import location_of
from remora.storage.layout import ShardLayout

_LEAST_HOT_MB = 16


def options_of(runtime: Runtime) -> Options:
    """Return what the application passed to a runtime."""
    return runtime._lifetime.options  # noqa: SLF001  # a part of the runtime


def opened_parts(runtime: Runtime) -> Internals | None:
    """The parts of a runtime while it is open; any thread may ask."""
    return runtime._lifetime.opened  # noqa: SLF001  # a part of the runtime


def built_of(runtime: Runtime) -> Internals | None:
    """The parts of a runtime that opens, is open or was; None before."""
    return runtime._lifetime.built  # noqa: SLF001  # a part of the runtime


def made_for_owner(runtime: Runtime, embedder: Embedder | None = None) -> Runtime:
    """The same runtime, not opened, which loads its models when it is told to.

    Args:
        runtime: not opened.
        embedder: that is loaded already; None for the runtime's own.
    """
    options = options_of(runtime)
    options = msgspec.structs.replace(
        options, warm_up=False, embedder=embedder if embedder is not None else options.embedder
    )
    made = Runtime.in_memory(config=options.config)
    made._lifetime = Lifetime(options)  # noqa: SLF001  # a part of the runtime
    return made


def change_options(runtime: Runtime, **changes: Any) -> Runtime:
    """The same runtime, not opened, with other values of some `Options`."""
    options = msgspec.structs.replace(options_of(runtime), **changes)
    runtime._lifetime = Lifetime(options)  # noqa: SLF001  # a part of the runtime
    return runtime


def make_shards(runtime: Runtime, layout: ShardLayout) -> list[Runtime]:
    """A runtime for each shard of the memory in `runtime`'s directory, none of them opened.

    They share counter, embedder, reranker and chat model, which the first to open loads; open them
    one after the other. What `runtime` may hold in memory, and may do at once, is divided among
    them.

    Raises:
        ConfigError: it was given a journal or a store, which cannot be several shards'.
    """
    options = options_of(runtime)
    if options.config.journal.dsn.reveal():
        raise ConfigError(
            f"a journal in PostgreSQL is one shard, and this memory has {layout.shards}: leave out "
            "journal.dsn, or name a directory whose memory is in one piece",
            key="journal.dsn",
        )
    for name in ("journal", "store"):
        if getattr(options, name) is not None:
            raise ConfigError(
                f"{name}= is one object, and this memory has {layout.shards} shards, each with a "
                f"{name} of its own: leave it out, or keep the memory in one piece"
            )
    return _make_runtimes(options, layout)


def make_database_shards(runtime: Runtime, layout: ShardLayout) -> list[Runtime]:
    """The same where journals are in PostgreSQL, each in a schema of its own.

    A node opens its shard's with `open_database`, which is given the lease's address; a single
    shard is in the directory itself.
    """
    return _make_runtimes(options_of(runtime), layout)


def _make_runtimes(options: Options, layout: ShardLayout) -> list[Runtime]:
    models = SharedModels()
    divided = divide_config(options.config, layout.shards)
    database = bool(divided.journal.dsn.reveal())
    shards = []
    for place, name in zip(layout.places, layout.names, strict=True):
        path = options.path
        if path is not None and (layout.shards > 1 or not database):
            path /= name
        config = locate_shard(divided, layout, place.number)
        shard = Runtime.in_memory(config=divided)
        shard._lifetime = Lifetime(  # noqa: SLF001  # a part of the runtime
            msgspec.structs.replace(options, path=path, config=config, shard=place, models=models)
        )
        shards.append(shard)
    return shards


def locate_shard(config: Config, layout: ShardLayout, number: int) -> Config:
    """The configuration of one shard: where its journal and its long-term memory are.

    Args:
        config: of the memory.
        layout: of the memory.
        number: of the shard.
    """
    database = bool(config.journal.dsn.reveal())
    if layout.shards > 1 or not database:
        config = _relocate(config, layout.name(number))
    if database:
        schema = layout.schema(config.journal.schema, number)
        journal = msgspec.structs.replace(config.journal, schema=schema)
        config = msgspec.structs.replace(config, journal=journal)
    return config


def divide_config(config: Config, shards: int) -> Config:
    """The configuration of one of so many shards, which together stay within `config`'s bounds."""

    def share(whole: int, least: int = 1) -> int:
        return min(whole, max(whole // shards, least))

    replace = msgspec.structs.replace
    activation, jobs, mailbox = config.activation, config.supervisor, config.mailbox
    return replace(
        config,
        activation=replace(
            activation,
            max_live=share(activation.max_live),
            max_bytes=share(activation.max_bytes),
        ),
        mailbox=replace(mailbox, max_total_bytes=share(mailbox.max_total_bytes, mailbox.max_bytes)),
        supervisor=replace(
            jobs,
            summarize_concurrency=share(jobs.summarize_concurrency),
            flush_concurrency=share(jobs.flush_concurrency),
        ),
        retention=replace(config.retention, total_mb=config.retention.total_mb / shards),
        long_term=replace(config.long_term, shards=share(config.long_term.shards)),
        recall=replace(config.recall, hot_mb=share(config.recall.hot_mb, _LEAST_HOT_MB)),
    )


def _relocate(config: Config, name: str) -> Config:
    """The same with an address of the shard's own, if long-term memory is elsewhere."""
    address = config.long_term.uri.reveal()
    if not address:
        return config
    there = Secret(str(location_of(address, name)))
    return msgspec.structs.replace(
        config, long_term=msgspec.structs.replace(config.long_term, uri=there)
    )
