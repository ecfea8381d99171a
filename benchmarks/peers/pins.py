"""What is installed into each library's environment; all benchmarks use the same one."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LIBRARIES", "Library"]

_TIKTOKEN = "tiktoken==0.14.0"


@dataclass(frozen=True)
class Library:
    """One environment.

    Attributes:
        requirements: what pip is given; the first names the environment's directory.
        shown: distributions whose versions are printed.
    """

    requirements: tuple[str, ...]
    shown: tuple[str, ...]


LIBRARIES = {
    "llama_index": Library(
        ("llama-index-core==0.14.25", "sqlalchemy==2.1.9", "aiosqlite==0.22.1"),
        ("llama-index-core", "sqlalchemy", "aiosqlite"),
    ),
    "langchain_classic": Library(
        ("langchain-classic==1.0.8", "langchain-core==1.7.2"),
        ("langchain-classic", "langchain-core"),
    ),
    "langgraph": Library(
        ("langgraph==1.2.22", "langgraph-checkpoint-sqlite==3.1.2", "aiosqlite==0.22.1", _TIKTOKEN),
        ("langgraph", "langgraph-checkpoint-sqlite"),
    ),
    "langchain": Library(
        (
            "langchain==1.4.7",
            "langgraph==1.2.22",
            "langgraph-checkpoint-sqlite==3.1.2",
            "aiosqlite==0.22.1",
        ),
        ("langchain", "langgraph"),
    ),
    "openai_agents": Library(("openai-agents==0.24.0", _TIKTOKEN), ("openai-agents",)),
    "adk": Library(
        ("google-adk[db]==2.13.0", "sqlalchemy==2.1.9", "aiosqlite==0.22.1", _TIKTOKEN),
        ("google-adk", "sqlalchemy"),
    ),
    "mem0": Library(
        ("mem0ai==2.2.1", "qdrant-client==1.20.0", _TIKTOKEN), ("mem0ai", "qdrant-client")
    ),
    "gigatoken": Library(("gigatoken==0.10.0", _TIKTOKEN), ("gigatoken",)),
    "rs_bpe": Library(("rs-bpe==0.1.0", _TIKTOKEN), ("rs-bpe",)),
    "bpe_openai": Library(("bpe-openai==0.1.4", _TIKTOKEN), ("bpe-openai",)),
    "kitoken": Library(("kitoken==0.11.1", _TIKTOKEN), ("kitoken",)),
    "redis": Library(("redis==8.1.0", "hiredis==3.5.0", _TIKTOKEN), ("redis", "hiredis")),
}
