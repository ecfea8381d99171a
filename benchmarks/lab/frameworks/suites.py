"""The frameworks' own suites: what is installed, which tests are run, and what cannot apply."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["OWN", "SUITES", "OwnSuite", "Suite"]

_PYTEST = ("pytest==9.2.0", "pytest-asyncio==1.5.0", "pytest-mock", "pytest-retry")
_SQLITE = "asks for a table, a connection or a lock of SQLite"
_ODD = "wants odd names of fields refused, which SQL cannot quote; here they match nothing"
_REPLACED = "waits until a compaction clears the session; here it replaces what it has"
_SHIM = "asks for what a closed connection refuses; a runtime serves all sessions"


@dataclass(frozen=True)
class Suite:
    """Tests of one framework.

    Attributes:
        framework: its name in the table.
        distribution: whose version the table shows.
        requirements: what pip is given, beside remora.
        folder: of the checkout, in which `tests` are; it is copied, so that the installed release
            is imported.
        tests: files to run.
        plugin: puts remora in the place of the framework's own class.
        paths: folders of the checkout that are imported.
        select: words that a test's name must have; empty for all.
        inapplicable: by the beginning of a test's name, why it says nothing about remora.
        modules: of the adapter, whose lines the table shows.
    """

    framework: str
    distribution: str
    requirements: tuple[str, ...]
    folder: str
    tests: tuple[str, ...]
    plugin: str
    paths: tuple[str, ...] = ()
    select: str = ""
    inapplicable: dict[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class OwnSuite:
    """remora's tests of an adapter, where the framework has no suite that could be run over it.

    Attributes:
        framework: its name in the table.
        distribution: whose version the table shows.
        requirements: what pip is given, beside remora.
        test: a file of ``tests/integration``.
        modules: of the adapter, whose lines the table shows.
        agents: it is a framework for agents, and so in the table.
    """

    framework: str
    distribution: str
    requirements: tuple[str, ...]
    test: str
    modules: tuple[str, ...]
    agents: bool = True


_AGENTS = ("openai-agents[encrypt]==0.24.0", "inline-snapshot", "pytest-timeout", *_PYTEST)
_GRAPH = (
    "langgraph-checkpoint==4.3.2",
    "langgraph==1.2.22",
    "langgraph-checkpoint-sqlite==3.1.2",
    "langchain-core==1.7.2",
    *_PYTEST,
)
_CORE = ("langchain-core==1.7.2", *_PYTEST, "pytest-socket", "syrupy", "freezegun", "blockbuster")
_STRANDS = ("strands-agents==1.62.0", "moto", *_PYTEST)
_FILES = "asks for a path or the text of a file"
_ADK = ("google-adk==2.13.0", "sqlalchemy", "greenlet", *_PYTEST)

SUITES: dict[str, tuple[Suite, ...]] = {
    "openai-agents": (
        Suite(
            "OpenAI Agents: sessions",
            "openai-agents",
            _AGENTS,
            "tests",
            (
                "memory/test_session.py",
                "memory/test_session_limit.py",
                "memory/test_session_context_wrapper.py",
                "memory/test_openai_responses_compaction_session.py",
                "extensions/memory/test_async_sqlite_session.py",
                "extensions/memory/test_encrypt_session.py",
            ),
            "openai_agents",
            inapplicable={
                "test_sqlite_session_close": _SQLITE,
                "test_sqlite_session_closed": _SHIM,
                "test_sqlite_session_pop_item_skips_corrupt": _SQLITE,
                "test_sqlite_session_pop_item_returns_none_after": _SQLITE,
                "test_sqlite_session_get_items_limit_skips_corrupt": _SQLITE,
                "test_sqlite_session_get_items_session_settings_limit_skips": _SQLITE,
                "test_sqlite_session_file_lock": _SQLITE,
                "test_sqlite_session_failed": _SQLITE,
                "test_sqlite_session_rollback": _SQLITE,
                "test_sqlite_session_post_commit": _SQLITE,
                "test_async_sqlite_session_pop_item_skips_corrupt": _SQLITE,
                "test_async_sqlite_session_pop_item_returns_none_after": _SQLITE,
                "test_async_sqlite_session_get_items_limit_skips_corrupt": _SQLITE,
                "test_async_sqlite_session_get_items_same_timestamp": _SQLITE,
                "test_async_sqlite_session_pop_item_same_timestamp": _SQLITE,
                "test_async_sqlite_session_close": _SHIM,
                "test_cancelled": _SQLITE,
                "test_post_commit": _SQLITE,
                "test_failed": _SQLITE,
                "test_operation_failure": _SQLITE,
                "test_rollback": _SQLITE,
                "test_close_retries": _SQLITE,
                "test_cancel_restore_waits": _REPLACED,
                "test_exception_restore_drains": _REPLACED,
                "test_initialization_failure": _SQLITE,
            },
            modules=("openai_agents",),
        ),
    ),
    "langgraph": (
        Suite(
            "LangGraph: store, in memory",
            "langgraph-checkpoint",
            _GRAPH,
            "libs/checkpoint/tests",
            ("test_store.py",),
            "langgraph",
            modules=("langgraph", "langgraph_items"),
        ),
        Suite(
            "LangGraph: store, SQLite",
            "langgraph-checkpoint",
            _GRAPH,
            "libs/checkpoint-sqlite/tests",
            ("test_store.py", "test_async_store.py", "test_ttl.py"),
            "langgraph",
            inapplicable={
                "test_nonnull_migrations": _SQLITE,
                "test_no_running_loop": "wants sync methods refused on the event loop of the test, "
                "which is not the runtime's",
                "test_escape_glob": _SQLITE,
                "test_namespace_match_pattern": _SQLITE,
                "test_list_namespaces_prefix_uses_indexable": _SQLITE,
                "test_sql_injection_vulnerability": _ODD,
            },
            modules=("langgraph", "langgraph_items"),
        ),
        Suite(
            "LangGraph: checkpointer, SQLite",
            "langgraph-checkpoint",
            _GRAPH,
            "libs/checkpoint-sqlite/tests",
            ("test_sqlite.py", "test_aiosqlite.py", "test_conformance_delta.py"),
            "langgraph",
            paths=("libs/checkpoint-conformance",),
            inapplicable={
                "test_metadata_predicate": _SQLITE,
                "test_informative_async_errors": "wants no async methods",
                "test_checkpoint_search_sql_injection": _ODD,
            },
            modules=("langgraph_checkpoints", "langgraph_threads"),
        ),
        Suite(
            "LangGraph: checkpoint conformance",
            "langgraph-checkpoint",
            _GRAPH,
            "libs/checkpoint-conformance/tests",
            ("conformance_of_remora.py",),
            "langgraph",
            paths=("libs/checkpoint-conformance",),
            modules=("langgraph_checkpoints", "langgraph_threads"),
        ),
    ),
    "google-adk": (
        Suite(
            "Google ADK: session services",
            "google-adk",
            _ADK,
            "tests/unittests/sessions",
            ("test_session_service.py",),
            "google_adk",
            modules=("google_adk",),
        ),
    ),
    "strands": (
        Suite(
            "Strands Agents: sessions",
            "strands-agents",
            _STRANDS,
            "tests",
            (
                "strands/session/test_repository_session_manager.py",
                "strands/session/test_file_session_manager.py",
            ),
            "strands",
            inapplicable={
                "test_create_session": _FILES,
                "test_delete_session": _FILES,
                "test_create_agent": _FILES,
                "test_create_message": _FILES,
                "test_message_durable_id_persists": _FILES,
                "test_create_multi_agent": _FILES,
                "test_corrupted_json_file": _FILES,
                "test_permission_error_handling": _FILES,
                "test__get_": _FILES,
            },
            modules=("strands",),
        ),
    ),
    "langchain-core": (
        Suite(
            "LangChain: histories",
            "langchain-core",
            _CORE,
            "tests",
            (
                "unit_tests/runnables/test_history.py",
                "unit_tests/chat_history/test_chat_history.py",
            ),
            "langchain_core",
            inapplicable={
                "test_interfaces": "compares `str(history)`, which would read all messages",
                "test_chat_history_deprecated": "compares the docstring",
            },
            modules=("langchain",),
        ),
    ),
}
"""By the name that the script is given."""

_TESTS = (
    "pytest==9.2.0",
    "hypothesis",
    "trio",
    "blockbuster>=1.5.23,<2",
    "apsw>=3.46",
)

OWN: dict[str, OwnSuite] = {
    "agent-framework": OwnSuite(
        "Agent Framework: remora's tests",
        "agent-framework-core",
        ("agent-framework-core==1.23.0", *_TESTS),
        "test_agent_framework.py",
        ("agent_framework",),
    ),
    "claude-agent-sdk": OwnSuite(
        "Claude Agent SDK: its contracts, and remora's tests",
        "claude-agent-sdk",
        ("claude-agent-sdk==0.2.187", *_TESTS),
        "test_claude_agent_sdk.py",
        ("claude_agent_sdk",),
    ),
    "langchain-agents": OwnSuite(
        "LangChain agents: remora's tests",
        "langchain",
        ("langchain==1.4.7", *_TESTS),
        "test_langchain_agents.py",
        ("langchain_agents",),
    ),
    "langgraph": OwnSuite(
        "LangGraph: remora's tests",
        "langgraph",
        ("langgraph==1.2.22", *_TESTS),
        "test_langgraph.py",
        (
            "langgraph",
            "langgraph_items",
            "langgraph_checkpoints",
            "langgraph_threads",
        ),
    ),
    "mcp": OwnSuite(
        "MCP, with the official client: remora's tests",
        "mcp",
        ("mcp==2.3.0", *_TESTS),
        "test_mcp.py",
        ("mcp",),
    ),
    "openai-agents": OwnSuite(
        "OpenAI Agents: remora's tests",
        "openai-agents",
        ("openai-agents==0.24.0", *_TESTS),
        "test_openai_agents.py",
        ("openai_agents",),
    ),
    "pydantic-ai": OwnSuite(
        "Pydantic AI: remora's tests",
        "pydantic-ai-slim",
        ("pydantic-ai-slim==2.68.0", *_TESTS),
        "test_pydantic_ai.py",
        ("pydantic_ai",),
    ),
    "google-adk": OwnSuite(
        "Google ADK: remora's tests",
        "google-adk",
        ("google-adk==2.13.0", *_TESTS),
        "test_google_adk.py",
        ("google_adk",),
    ),
    "ray": OwnSuite(
        "Ray: remora's tests",
        "ray",
        ("ray==2.60.0", *_TESTS),
        "test_ray.py",
        ("ray",),
        agents=False,
    ),
    "strands": OwnSuite(
        "Strands Agents: remora's tests",
        "strands-agents",
        ("strands-agents==1.62.0", *_TESTS),
        "test_strands.py",
        ("strands", "strands_storage"),
    ),
    "llama-index": OwnSuite(
        "LlamaIndex: remora's tests",
        "llama-index-core",
        ("llama-index-core==0.14.25", *_TESTS),
        "test_llama_index.py",
        ("llama_index_agents",),
    ),
}
"""By the name that the script is given."""
