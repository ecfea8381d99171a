"""Fixtures for the tests of code that uses remora: pytest finds them when remora is installed.

`memory` is an open runtime in memory, `memory_dir` an open runtime in a temporary directory,
`memory_model` the chat model that answers them from a script. docs/how-to/testing.md shows them
in use.

The tests are coroutines, which anyio's plugin or pytest-asyncio runs, and so are the fixtures.
Each plugin has its own way to declare them, so each fixture is declared once for anyio and once
for each scope of pytest-asyncio's event loops; what the user names chooses the one that fits the
test. This module is no part of the package ``remora``, because pytest imports it in every run,
and a run without these fixtures imports nothing of remora.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import pytest

if TYPE_CHECKING:
    from remora import Config, Runtime
    from remora.testing import ScriptedChatModel

__all__ = [
    "memory",
    "memory_dir",
    "memory_model",
    "memory_options",
    "module_memory",
    "module_memory_dir",
    "pytest_configure",
    "session_memory",
    "session_memory_dir",
]

_Scope = Literal["function", "class", "module", "package", "session"]
_Opens = Callable[[dict[str, Any], pytest.TempPathFactory], "Runtime"]
_SCOPES: tuple[_Scope, ...] = get_args(_Scope)

_DEADLINE_S = 60.0
"""A test's result must not depend on how fast the machine is."""
_NO_LOOP = (
    "this fixture opens a runtime on the test's event loop: mark the test with "
    "@pytest.mark.anyio (its plugin comes with remora), or install pytest-asyncio"
)


@pytest.fixture(scope="session")
def memory_options() -> dict[str, Any]:
    """Arguments of `remora.Runtime` for the runtimes of the fixtures: override it to give some."""
    return {}


@pytest.fixture
def memory_model() -> ScriptedChatModel:
    """The chat model of `memory` and `memory_dir`, in a test that names it: `script` its answers.

    Without it, summaries are extracts, as in a runtime without a model.
    """
    from remora.testing import ScriptedChatModel  # noqa: PLC0415  # only a test that uses it pays

    return ScriptedChatModel([])


@pytest.fixture
def memory(request: pytest.FixtureRequest, memory_options: object) -> Runtime:
    """An open `remora.Runtime` in memory, with an embedder that needs no weights; new per test."""
    return _opened(request, "memory")


@pytest.fixture(scope="module")
def module_memory(request: pytest.FixtureRequest, memory_options: object) -> Runtime:
    """As `memory`, and one for all tests of a module."""
    return _opened(request, "module_memory")


@pytest.fixture(scope="session")
def session_memory(request: pytest.FixtureRequest, memory_options: object) -> Runtime:
    """As `memory`, and one for all tests of a run."""
    return _opened(request, "session_memory")


@pytest.fixture
def memory_dir(request: pytest.FixtureRequest, memory_options: object) -> Runtime:
    """An open `remora.Runtime` in a temporary directory, its `path`; new per test.

    It has SQLite, LanceDB and the embedder of an application; loading them takes a run a second or
    two, once.
    """
    return _opened(request, "memory_dir")


@pytest.fixture(scope="module")
def module_memory_dir(request: pytest.FixtureRequest, memory_options: object) -> Runtime:
    """As `memory_dir`, and one for all tests of a module."""
    return _opened(request, "module_memory_dir")


@pytest.fixture(scope="session")
def session_memory_dir(request: pytest.FixtureRequest, memory_options: object) -> Runtime:
    """As `memory_dir`, and one for all tests of a run."""
    return _opened(request, "session_memory_dir")


# -- what the fixtures above choose from -----------------------------------------------------------


def _opened(request: pytest.FixtureRequest, name: str) -> Runtime:
    """The runtime of that name as the plugin opens it that runs the test."""
    if "anyio_backend" in request.fixturenames:
        return cast("Runtime", request.getfixturevalue(f"_{name}_anyio"))
    if not request.config.pluginmanager.hasplugin("asyncio"):
        pytest.fail(_NO_LOOP, pytrace=False)
    wanted = request.config.getini("asyncio_default_test_loop_scope")
    if request.scope == "function" and (marker := request.node.get_closest_marker("asyncio")):
        wanted = marker.kwargs.get("loop_scope") or wanted
    loop = max(request.scope, wanted, key=_SCOPES.index)
    return cast("Runtime", request.getfixturevalue(f"_{name}_asyncio_{loop}"))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the fixtures for the plugins that there are."""
    fixtures = ModuleType("remora_pytest_fixtures")
    on_asyncio = config.pluginmanager.hasplugin("asyncio")
    for name, (scope, opens) in _FIXTURES.items():
        fixture: Any = pytest.fixture(_coroutine(scope, opens), scope=scope)
        setattr(fixtures, f"_{name}_anyio", fixture)
        if on_asyncio:
            import pytest_asyncio  # noqa: PLC0415

            for loop in _SCOPES[_SCOPES.index(scope) :]:
                declare = pytest_asyncio.fixture(scope=scope, loop_scope=loop)
                fixture = declare(_coroutine(scope, opens))
                setattr(fixtures, f"_{name}_asyncio_{loop}", fixture)
    config.pluginmanager.register(fixtures, fixtures.__name__)


def _coroutine(scope: _Scope, opens: _Opens) -> Callable[..., AsyncIterator[Runtime]]:
    async def opened(
        request: pytest.FixtureRequest,
        memory_options: dict[str, Any],
        tmp_path_factory: pytest.TempPathFactory,
    ) -> AsyncIterator[Runtime]:
        options = {"config": _patient(), **memory_options}
        if scope == "function" and "memory_model" in request.fixturenames:
            options["chat_model"] = request.getfixturevalue("memory_model")
        runtime = opens(options, tmp_path_factory)
        async with runtime:
            yield runtime

    return opened


def _patient() -> Config:
    from remora.config import Config, RecallConfig, SynopsisConfig  # noqa: PLC0415

    return Config(
        recall=RecallConfig(deadline_s=_DEADLINE_S),
        synopsis=SynopsisConfig(deadline_s=_DEADLINE_S),
    )


def _in_memory(options: dict[str, Any], _: object) -> Runtime:
    from remora import Runtime  # noqa: PLC0415
    from remora.storage.memory import MemoryStore  # noqa: PLC0415
    from remora.testing import HashEmbedder  # noqa: PLC0415

    if not {"embedder", "store"} & options.keys():
        embedder = HashEmbedder()
        options |= {"embedder": embedder, "store": MemoryStore(embedder.dimension)}
    return Runtime.in_memory(**options)


def _in_directory(options: dict[str, Any], temporary: pytest.TempPathFactory) -> Runtime:
    from remora import Runtime  # noqa: PLC0415

    return Runtime(temporary.mktemp("memory"), **options)


_FIXTURES: dict[str, tuple[_Scope, _Opens]] = {
    "memory": ("function", _in_memory),
    "module_memory": ("module", _in_memory),
    "session_memory": ("session", _in_memory),
    "memory_dir": ("function", _in_directory),
    "module_memory_dir": ("module", _in_directory),
    "session_memory_dir": ("session", _in_directory),
}
