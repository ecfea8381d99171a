"""The fixtures that remora brings to a user's tests, under each plugin that runs coroutines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

from remora import BufferPolicy

pytestmark = pytest.mark.filterwarnings("error")
ONE = {one}
MODULE = {module}
SESSION = {session}
runtimes = []


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"


@pytest.fixture
def agent(memory):
    runtimes.append(memory)
    return memory


async def remember(memory):
    chat = memory.session("alice", "one")
    await chat.append({{"role": "user", "content": "I moved to Lisbon."}})
    await chat.flush()
    await memory.settle()
    context = await memory.session("alice", "two").load(query="Who moved to Lisbon?")
    assert "I moved to Lisbon." in [one.text for one in context.memories]


async def count(memory):
    return (await memory.session("alice", "one").load()).sources["recent"].count


@ONE
async def test_memory(agent):
    await remember(agent)


@ONE
async def test_each_test_has_its_own(agent, memory):
    assert agent is memory
    assert "closed" in repr(runtimes[0])
    assert await count(memory) == 0


@MODULE
async def test_memory_in_a_wider_loop(memory):
    await remember(memory)


@MODULE
async def test_module_memory(module_memory):
    await remember(module_memory)


@MODULE
async def test_module_memory_remembers(module_memory):
    assert await count(module_memory) == 1


@SESSION
async def test_session_memory(session_memory):
    await remember(session_memory)


@SESSION
async def test_session_memory_remembers(session_memory, memory_dir):
    assert await count(session_memory) == 1
    assert await count(memory_dir) == 0


class TestScript:
    @pytest.fixture(params=[100])
    def memory_options(self, request):
        return {{"policy": BufferPolicy.summary_buffer(request.param)}}

    @ONE
    async def test_summary(self, memory_dir, memory_model):
        memory_model.script(*["She likes tea."] * 12)
        chat = memory_dir.session("alice", "one")
        for number in range(12):
            message = f"{{number}}: I like tea, and tea, and tea."
            await chat.append({{"role": "user", "content": message}})
        await memory_dir.settle()
        assert "She likes tea." in (await chat.load()).summary
        assert "I like tea" in str(memory_model.requests[0])
        assert (memory_dir.path / "journal.db").exists()
"""
ASYNCIO = "-p asyncio -o asyncio_default_fixture_loop_scope=function"
ANYIO = "pytest.mark.anyio"
STRICT = "pytest.mark.asyncio"
NONE = "lambda test: test"


def run(pytester: pytest.Pytester, tests: str, *words: str) -> pytest.RunResult:
    """Run tests in a process of their own, with the plugins that are named and no others."""
    pytester.makepyfile(tests)
    return pytester.runpytest_subprocess("-p", "remora_pytest", *words)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.blocking
@pytest.mark.parametrize(
    ("words", "marks"),
    [
        pytest.param("-p anyio", (ANYIO, ANYIO, ANYIO), id="anyio"),
        pytest.param(
            ASYNCIO,
            (STRICT, f"{STRICT}(loop_scope='module')", f"{STRICT}(loop_scope='session')"),
            id="asyncio strict",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            f"{ASYNCIO} -p anyio -o asyncio_mode=auto -o asyncio_default_test_loop_scope=session",
            (NONE, NONE, NONE),
            id="asyncio auto",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_fixtures(pytester: pytest.Pytester, words: str, marks: tuple[str, str, str]) -> None:
    """Each fixture is an open runtime of its scope, in the loop of the test, closed after it;
    `memory_options` are its options, and `memory_model` is its model.
    """
    one, module, session = marks
    tests = TESTS.format(one=one, module=module, session=session)
    run(pytester, tests, *words.split()).assert_outcomes(passed=8)


@pytest.mark.nightly
@pytest.mark.blocking
def test_the_example(pytester: pytest.Pytester) -> None:
    """The tests that docs/how-to/testing.md shows pass, and are the example's, line for line."""
    example = (ROOT / "examples" / "tested_agent.py").read_text()
    shown = re.findall(
        r"<!-- examples/tested_agent.py -->\n```python\n(.*?)```",
        (ROOT / "docs" / "how-to" / "testing.md").read_text(),
        re.DOTALL,
    )
    assert len(shown) == 2
    assert all(code in example for code in shown)
    run(pytester, example, "-p", "anyio").assert_outcomes(passed=3)


@pytest.mark.nightly
@pytest.mark.blocking
def test_without_the_fixtures(pytester: pytest.Pytester) -> None:
    """pytest imports the plugin in every run; remora and what it stands on only for a fixture. A
    test that no plugin runs on an event loop is told so; on trio, there is `memory`.
    """
    tests = """
import sys
import pytest

def test_nothing_is_imported():
    assert "remora_pytest" in sys.modules
    assert not {"remora", "lancedb", "pyarrow", "numpy", "msgspec"} & sys.modules.keys()

def test_no_loop(memory):
    pass

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_trio(memory):
    await memory.session("alice", "one").append({"role": "user", "content": "Hello."})
"""
    done = run(pytester, tests, "-p", "anyio")
    done.assert_outcomes(errors=1, passed=2)
    done.stdout.fnmatch_lines(["*mark the test with @pytest.mark.anyio*"])
