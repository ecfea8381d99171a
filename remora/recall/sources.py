"""The share of each tier of memory in a context."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from remora.actors.blocks.source import Source

_OFF = Source("off")
_BLOCK = "block:"


class Sources(msgspec.Struct, frozen=True):
    """The status of each tier in a context: ``context.sources.long_term.status``.

    By name as well, for logs and loops: ``sources["long_term"]``, ``sources["block:NAME"]``,
    ``sources.items()``, ``dict(sources)``. A type checker finds a misspelt field, not a misspelt
    name.

    Attributes:
        summary: the running summary and the summary entries.
        recent: the messages of the conversation.
        synopsis: the user profile.
        working: working memory.
        long_term: long-term memory.
        instructions: the user's standing instructions.
        blocks: memory blocks, by name.
    """

    summary: Source = _OFF
    recent: Source = _OFF
    synopsis: Source = _OFF
    working: Source = _OFF
    long_term: Source = _OFF
    instructions: Source = _OFF
    blocks: dict[str, Source] = msgspec.field(default_factory=dict)

    def __getitem__(self, name: str) -> Source:
        if name in _TIERS:
            source: Source = getattr(self, name)
            return source
        block = name.removeprefix(_BLOCK)
        if block == name or block not in self.blocks:
            raise KeyError(f"no source {name!r}; there are {', '.join(self)}")
        return self.blocks[block]

    def __iter__(self) -> Iterator[str]:
        yield from _TIERS
        for name in self.blocks:
            yield f"{_BLOCK}{name}"

    def keys(self) -> list[str]:
        """The names: of the tiers, then ``block:NAME`` for each memory block."""
        return list(self)

    def items(self) -> list[tuple[str, Source]]:
        """Name and status of each tier and memory block."""
        return [(name, self[name]) for name in self]


_TIERS = tuple(name for name in Sources.__struct_fields__ if name != "blocks")
