"""What all adapters share: what they are given, and what they say without their framework."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import remora
from remora import Client, Runtime, adapters
from remora.adapters.sessions import Conversation, find_session
from remora.adapters.versions import TESTED, UntestedVersion, warn_if_untested
from remora.client.session import ClientSession
from remora.errors import InvalidInput, OwnerUnreachable
from tests.configs import PLAIN
from tests.conformance import late
from tests.integration.test_client import connected

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # a service, and late imports
openai, langchain = late("remora.adapters.openai_agents"), late("remora.adapters.langchain")
middleware = late("remora.adapters.langchain_agents")


def test_what_is_no_session_is_refused() -> None:
    """Users over HTTP have not all that adapters need: without this they would fail in the first
    run.
    """
    client = Client("http://127.0.0.1:1", api_key="remora_key")
    sessions: list[Callable[[Any], object]] = [
        openai.RemoraSession,
        langchain.RemoraChatMessageHistory,
        lambda given: find_session(lambda _: given, None),
    ]
    users: list[Callable[[Any], object]] = [
        late("remora.adapters.langgraph").RemoraStore,
        late("remora.adapters.langgraph_checkpoints").RemoraSaver,
    ]
    wrong: list[Any] = [None, 3, "ann", {}, ClientSession, client, client.user("ann")]
    for make in sessions:
        for given in wrong:
            with pytest.raises(InvalidInput, match="not a session of a Runtime"):
                make(given)
    for make in users:
        with pytest.raises(InvalidInput, match=r"remora\.connect"):
            make(client.user("ann"))


def test_sessions_have_what_adapters_use() -> None:
    """For type checkers; `test_client` compares the signatures."""
    kinds: list[type[Conversation]] = [remora.Session, ClientSession]
    assert len(kinds) == 2


async def test_a_service_that_is_gone() -> None:
    """An adapter raises what the verb raises."""
    async with Client("http://127.0.0.1:1", api_key="remora_key", timeout_s=0.1) as client:
        session = openai.RemoraSession(client.session("ann", "chat"))
        with pytest.raises(OwnerUnreachable):
            await session.get_items()
        with pytest.raises(OwnerUnreachable):
            await session.add_items([{"role": "user", "content": "Hello"}])


async def test_threads_need_a_session_of_blocking(tmp_path: Path) -> None:
    """What cannot wait for an event loop says so, and nothing is written."""
    chat_models = late("langchain_core.language_models")
    async with Runtime.in_memory(config=PLAIN) as runtime, connected(runtime, tmp_path) as client:
        chat = client.session("ann", "chat")
        history = langchain.RemoraChatMessageHistory(chat)
        model = chat_models.FakeListChatModel(responses=["x"])
        wrapped = [middleware.RemoraMiddleware(chat)]
        agent = late("langchain.agents").create_agent(model, middleware=wrapped)
        for use in (
            lambda: history.messages,
            lambda: history.add_user_message("x"),
            history.clear,
            lambda: agent.invoke({"messages": ["x"]}),
        ):
            with pytest.raises(InvalidInput, match=r"remora\.blocking"):
                use()
        assert await chat.history() == []


# -- frameworks that are missing, or of another release --------------------------------------------

EXTRAS = [
    ("remora.adapters.openai_agents", "agents", "openai-agents"),
    ("remora.adapters.langchain", "langchain_core", "langchain"),
    ("remora.adapters.langchain_agents", "langchain", "langchain-agents"),
    ("remora.adapters.langgraph", "langgraph.store", "langgraph"),
    ("remora.adapters.langgraph_checkpoints", "langgraph.checkpoint", "langgraph"),
    ("remora.adapters.agent_framework", "agent_framework", "agent-framework"),
    ("remora.adapters.claude_agent_sdk", "claude_agent_sdk", "claude-agent-sdk"),
    ("remora.adapters.google_adk", "google.adk", "google-adk"),
    ("remora.adapters.llama_index_agents", "llama_index", "llama-index"),
    ("remora.adapters.mcp", "mcp", "mcp"),
    ("remora.adapters.pydantic_ai", "pydantic_ai", "pydantic-ai"),
    ("remora.adapters.ray", "ray", "ray"),
    ("remora.adapters.strands", "strands", "strands"),
    ("remora.adapters.strands_storage", "strands", "strands"),
    ("remora.models.openai", "httpx2", "openai"),
]
WITHOUT = f"""
import importlib, sys
for module, package, extra in {EXTRAS!r}:
    known = sys.modules.get(package)
    sys.modules[package] = None
    try:
        importlib.import_module(module)
    except ImportError as e:
        assert f'pip install "remora[{{extra}}]"' in str(e), (module, e)
    else:
        sys.exit(f"{{module}} was imported without {{package}}")
    del sys.modules[package]
    if known:
        sys.modules[package] = known
"""
LATER = """
import importlib, importlib.metadata as metadata, sys, warnings
from remora.adapters.versions import TESTED, UntestedVersion
version = metadata.version
metadata.version = lambda name: "99.1" if name in TESTED else version(name)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for module in sys.argv[1:]:
        importlib.import_module(f"remora.adapters.{module}")
for one in seen:
    if one.category is UntestedVersion:
        print(one.message)
"""


@pytest.mark.cold
def test_missing_extras() -> None:
    """S4.29, S3.03: without the extra, an `ImportError` with the very command that installs it."""
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


def test_each_adapter_names_a_release_that_it_is_not_tested_with() -> None:
    """Those whose framework has an environment of its own are read, and not imported."""
    folder = Path(adapters.__file__).parent
    warning: dict[str, list[str]] = {distribution: [] for distribution in TESTED}
    for file in sorted(folder.glob("*.py")):
        for distribution in re.findall(
            r'^warn_if_untested\("(.*)"\)$', file.read_text(), re.MULTILINE
        ):
            warning[distribution].append(file.stem)
    assert all(warning.values()), warning
    here = ["langchain", "langchain-core", "langgraph-checkpoint", "mcp", "openai-agents"]
    here.append("pydantic-ai-slim")
    modules = [module for distribution in here for module in warning[distribution]]
    done = subprocess.run(
        [sys.executable, "-c", LATER, *modules], capture_output=True, text=True, check=True
    )
    named = re.findall(
        r"^(\S+) 99\.1 is installed; .* is tested with \d", done.stdout, re.MULTILINE
    )
    assert sorted(set(named)) == here


def test_an_untested_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning, of a category of its own, with both versions; the installed one is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untested("openai-agents")
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "7.1.0")
    with pytest.warns(UntestedVersion, match=r"openai-agents 7\.1\.0 .* tested with"):
        warn_if_untested("openai-agents")
