"""Memory blocks: long-term memory in pieces that an application chooses, and may write itself.

Pass them to the runtime::

    from remora.blocks import FactExtractionMemoryBlock, StaticMemoryBlock, VectorMemoryBlock

    blocks = [
        StaticMemoryBlock(name="core_info", static_content="My name is Logan; I live in Oslo."),
        FactExtractionMemoryBlock(name="extracted_info", max_facts=50, priority=1),
        VectorMemoryBlock(name="vector_memory", priority=2),
    ]
    async with remora.Runtime("memory/", blocks=blocks) as runtime:
        ...
"""

from __future__ import annotations

from remora.actors.blocks.base import (
    BaseMemoryBlock,
    BlockContent,
    BlockServices,
    BlocksLike,
    ChatMessage,
    MemoryBlock,
    StaticMemoryBlock,
)
from remora.actors.blocks.fact import FactExtractionMemoryBlock
from remora.actors.blocks.vector import (
    InMemoryVectorStore,
    LongTermVectorStore,
    PostProcessor,
    VectorHit,
    VectorMemoryBlock,
    VectorStore,
)
from remora.faces import publish

__all__ = [
    "BaseMemoryBlock",
    "BlockContent",
    "BlockServices",
    "BlocksLike",
    "ChatMessage",
    "FactExtractionMemoryBlock",
    "InMemoryVectorStore",
    "LongTermVectorStore",
    "MemoryBlock",
    "PostProcessor",
    "StaticMemoryBlock",
    "VectorHit",
    "VectorMemoryBlock",
    "VectorStore",
]

publish(__name__, __all__, globals())
