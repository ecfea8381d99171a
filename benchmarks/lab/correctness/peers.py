"""What is compared: each subject, its pinned distributions, and how it was configured."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.pins import LIBRARIES, Library

__all__ = ["PEERS", "Peer"]


@dataclass(frozen=True)
class Peer:
    """One column of the table.

    Attributes:
        name: its driver in `benchmarks.lab.correctness.subjects`.
        title: what heads the column.
        library: what is installed into its environment, and which versions are printed; nothing is
            installed for remora, which runs in the environment of the script.
        kept_in: where it keeps what no context shows any more.
        notes: how it was configured.
    """

    name: str
    title: str
    library: Library
    kept_in: str
    notes: str


PEERS = (
    Peer(
        "remora",
        "remora",
        Library((), ("remora", "aiosqlite", "lancedb")),
        "in `history()`",
        "`Runtime(directory)`: SQLite with `synchronous=FULL`, LanceDB, everything at its default "
        "but "
        "`buffer.token_limit` where a program overflows the buffer. Contexts are loaded with "
        "`max_tokens=200_000`, so "
        "that none is cut to a budget. An append is acknowledged when it is durable. Beyond "
        "`buffer.overdraft_ratio` "
        "(twice the context's budget) it does not wait for a slow or failing summarizer any "
        "longer: an extract stands "
        "in. Without a chat model, a summary is an extract: whole sentences, in at most "
        "half of the tokens that they stand for, at most `1 - fold_ratio` of `token_limit`, "
        "and at least `summary_tokens`. "
        "Messages that do not fit whole are in no context: `sources.summary` is then "
        "`degraded` and gives the first and last of them and their count. `history()` has them "
        "all. Deletion: `User.forget`.",
    ),
    Peer(
        "llama_index_memory",
        "LlamaIndex Memory, default",
        LIBRARIES["llama_index"],
        "archived",
        "`Memory.from_defaults(session_id=…)`, whose database is SQLite in memory, one object for "
        "a session, shared "
        "by its callers. Summaries: `FactExtractionMemoryBlock`. Long-term memory: "
        "`VectorMemoryBlock` over one "
        "vector store that filters as asked.",
    ),
    Peer(
        "llama_index_file",
        "LlamaIndex Memory, file",
        LIBRARIES["llama_index"],
        "archived",
        "The same with `async_database_uri=` of one SQLite file. Deletion: `areset`, which knows "
        "nothing of the vector store.",
    ),
    Peer(
        "langchain_memory",
        "LangChain ConversationSummaryBufferMemory",
        LIBRARIES["langchain_classic"],
        "in the buffer",
        "One object for a session, in memory, as it comes; an append is `aadd_messages` and "
        "`aprune`, which is what "
        "`asave_context` does.",
    ),
    Peer(
        "langgraph",
        "LangGraph AsyncSqliteSaver",
        LIBRARIES["langgraph"],
        "in other checkpoints",
        "A graph of one node over `MessagesState` on a file; an append is one `ainvoke` with the "
        "session as `thread_id`, a "
        "key is the message's `id`. Its `AsyncSqliteStore` is the shared store, with the "
        "namespace `(user, 'memories')`, "
        "listed and not searched by meaning. Deletion: `adelete_thread`, and `adelete` for each "
        "item of the store.",
    ),
    Peer(
        "langchain_middleware",
        "LangChain SummarizationMiddleware",
        LIBRARIES["langchain"],
        "in other checkpoints",
        "`create_agent` with the middleware (`trigger=('tokens', limit)`, `keep=('tokens', limit "
        "// 2)`) on "
        "`AsyncSqliteSaver`; an append is one `ainvoke`, whose agent answers at once. Deletion: "
        "`adelete_thread`.",
    ),
    Peer(
        "openai_agents",
        "OpenAI Agents SQLiteSession",
        LIBRARIES["openai_agents"],
        "in the session",
        "`SQLiteSession(id, file)`, one object for a session. Summaries: "
        "`OpenAIResponsesCompactionSession` around "
        "it, over a client that answers locally; an append is then `add_items` and "
        "`run_compaction`, so what it "
        "raises is the compaction's; called so, it replaces the whole history, where the SDK's "
        "runner replaces its end "
        "(not measured). Deletion: `clear_session`.",
    ),
    Peer(
        "adk",
        "Google ADK DatabaseSessionService",
        LIBRARIES["adk"],
        "in the session's events",
        "On a SQLite file; an append is `get_session` and `append_event`, one event a message, a "
        "key is the event's `id`. "
        "Where there is a summarizer, an append is one `Runner.run_async` of an app with "
        "`EventsCompactionConfig(token_threshold=limit)`. Deletion: `delete_session`.",
    ),
    Peer(
        "mem0",
        "mem0, no inference",
        LIBRARIES["mem0"],
        "in the store",
        "`AsyncMemory.add(…, infer=False)` with its default vector store (Qdrant in a directory) "
        "and an embedder of "
        "hashed words; every message is a row at once. Deletion: `delete_all(user_id=…)`; its "
        "history database keeps the "
        "texts.",
    ),
)
