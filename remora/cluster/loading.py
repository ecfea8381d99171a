"""When an owner loads tokenizer, embedder and LanceDB: after it serves, or before, as a standby."""

from __future__ import annotations

import importlib

import anyio
import msgspec

from remora.api.shards import made_for_owner, options_of
from remora.cluster.target import Target
from remora.services.preload import preload
from remora.tokens import load_encoding

_OPENING = ("remora.storage.sqlite.journal", "remora.cluster.serving", "remora.cluster.sharded")


def load_rest(target: Target) -> None:
    """Load the tokenizer, which counters then find. Blocks for half a second."""
    tokens = target.config.tokens
    if options_of(target.runtime).counter is None and tokens.counter == "tiktoken":
        load_encoding(tokens.encoding)


def load_ahead(target: Target) -> Target:
    """The target with all that it needs loaded. Blocks for a second or more."""
    preload()
    for name in _OPENING:
        importlib.import_module(name)
    load_rest(target)
    config, given = target.config, options_of(target.runtime)
    if config.long_term.enabled and given.store is None:
        importlib.import_module("remora.storage.lance.store")
        importlib.import_module("remora.storage.lance.loading").import_lancedb()
    if config.models.embedder == "wordllama" and given.embedder is None:
        embedder = importlib.import_module("remora.models.static").WordLlamaEmbedder()
        anyio.run(embedder.embed, ["warm"])
        return msgspec.structs.replace(target, runtime=made_for_owner(target.runtime, embedder))
    return target
