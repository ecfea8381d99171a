"""`remora.blocking`: the same methods, for threads, scripts and notebooks."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_type_hints

import anyio
import anyio.to_thread
import pytest

import remora
from remora import Config, blocking
from remora.api import threads
from remora.errors import InvalidInput, InvalidMessage, RuntimeClosed, WrongLoop
from tests.patience import until
from tests.processes import bound
from tests.verbs import public_members, said
from tools import blocking as stub

LEAN = Config.from_dict({"tokens": {"counter": "heuristic"}, "models": {"embedder": "none"}})
BARE = Config.from_dict({"tokens": {"counter": "heuristic"}, "long_term": {"enabled": False}})
KINDS = threads.Mirror.kinds


def loops() -> list[str]:
    """Threads that run event loops; idle workers of anyio end a moment later."""
    return [one.name for one in threading.enumerate() if "worker" not in one.name]


# -- nothing is forgotten --------------------------------------------------------------------------


INTERFACES = {
    remora.ChatModel,
    remora.Client,  # over HTTP; a program without async sends requests itself
    remora.Embedder,
    remora.Reranker,
    remora.Summarizer,
}


def test_every_public_name_is_there() -> None:
    """And waits: no method returns a coroutine. Deprecated names are left out."""
    for original, kind in KINDS.items():
        names = public_members(original)
        assert names <= set(dir(kind)), original
        coroutines = [one for one in names if inspect.iscoroutinefunction(getattr(kind, one))]
        assert coroutines == [], original


def test_every_async_class_is_there() -> None:
    """Every class that `remora` shows and that has coroutines, and all that their methods make."""
    shown = {kind for name in remora.__all__ if inspect.isclass(kind := getattr(remora, name))}
    made: set[Any] = set()
    for original in KINDS:
        for name in public_members(original):
            method = getattr(original, name)
            if inspect.isfunction(method) and not inspect.iscoroutinefunction(method):
                known = {**vars(remora), **method.__globals__}
                made.add(get_type_hints(method, known).get("return"))
    with_coroutines = {
        kind
        for kind in filter(inspect.isclass, shown | made)
        if kind.__module__.startswith("remora")
        and kind not in INTERFACES
        and any(
            inspect.iscoroutinefunction(method)
            for name, method in inspect.getmembers(kind)
            if not name.startswith("_")
        )
    }
    assert with_coroutines - {remora.api.build.Internals} <= set(KINDS)


def test_the_stub_is_up_to_date() -> None:
    """Type checkers and editors see the signatures: ``python tools/blocking.py`` writes them."""
    assert stub.STUB.read_text() == stub.render()


# -- what it does ----------------------------------------------------------------------------------


def test_a_script(tmp_path: Path) -> None:
    """Handles, results and errors are those of the async methods; the directory is kept."""
    with blocking.Runtime(tmp_path, config=LEAN) as runtime:
        chat = runtime.user("alice").session("one")
        seqs: tuple[int, ...] = chat.append([said("hello"), said("I like tea")]).seqs
        assert seqs == (1, 2)
        assert [one["content"] for one in chat.load().messages] == ["hello", "I like tea"]
        assert runtime.user("alice").agent("cook").remember("tea is hot")
        assert runtime.shared("team").as_("zoe").claim() is None  # type: ignore[func-returns-value]
        copy: blocking.Session = chat.fork("two")
        assert copy.size() == 2
        assert copy.key.session == "two"
        assert repr(chat).startswith("blocking.Session('alice', 'one'")
        (receipt,) = runtime.append_many([(chat, said("more"), None)])
        assert isinstance(receipt, remora.Receipt)
        with pytest.raises(InvalidMessage):
            chat.append(dict[str, Any](role="user"))
        result = runtime.user("alice").tools().save_to_memory("", ["tea"])
        assert result["success"]
        assert runtime.statistics().registry.live
    with pytest.raises(RuntimeClosed):
        chat.load()
    with runtime:  # again
        assert chat.size() == 3


def test_turns() -> None:
    """Entered with ``with``; a retry gets the stored reply. Chunks of a stream come from the
    thread's own iterator, and what was streamed before a cut is kept.
    """
    with blocking.Runtime.in_memory(config=BARE) as runtime:
        chat = runtime.session("alice", "one")
        turn: blocking.Turn
        for attempt in range(2):
            with chat.turn("hello", key="request-1") as turn:
                assert turn.replayed == bool(attempt)
                if not turn.replayed:
                    assert [one["content"] for one in turn.context.messages] == ["hello"]
                    turn.reply("hi")
                assert [one.content for one in turn.replies] == ["hi"]
        with chat.turn("hello", key="request-2") as turn:
            assert list(turn.stream(iter(["he", "llo", " Alice"]))) == ["he", "llo", " Alice"]
        assert chat.history()[-1].content == "hello Alice"
        with chat.turn("hello", key="request-3") as turn:
            passed = turn.stream(iter(["he", "llo", " Alice"]))
            assert next(passed) == "he"
            passed.close()
        assert chat.history()[-1].content == "he"


def test_start_and_close(tmp_path: Path) -> None:
    """Each runtime has a thread for its event loop, which ends with it, or with a failed start."""
    before = loops()
    (tmp_path / "memory").write_text("a file")
    with pytest.raises(remora.errors.DirectoryUnusable):
        blocking.Runtime(tmp_path / "memory", config=LEAN).start()
    assert loops() == before
    runtime = blocking.Runtime.in_memory(config=BARE)
    with pytest.raises(RuntimeClosed, match="open the runtime first"):
        runtime.session("alice", "one").load()
    assert runtime.start() is runtime
    with pytest.raises(InvalidInput, match="open already"):
        runtime.start()
    assert len(loops()) == len(before) + 1
    runtime.close()
    runtime.close()
    assert loops() == before


def test_many_threads(tmp_path: Path) -> None:
    """At the same time, in the same sessions: nothing is lost, and each thread's order is kept."""
    with blocking.Runtime(tmp_path, config=BARE) as runtime:

        def send(thread: int) -> None:
            chat = runtime.session("alice", f"{thread % 2}")
            for number in range(20):
                chat.append(said(f"{thread} {number}"))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(send, range(8)))
        for half in (0, 1):
            texts = [str(one.content) for one in runtime.session("alice", f"{half}").history()]
            assert len(texts) == 80
            for thread in range(half, 8, 2):
                own = [text for text in texts if text.startswith(f"{thread} ")]
                assert own == [f"{thread} {number}" for number in range(20)]


@pytest.mark.blocking  # that is what it does
def test_in_a_notebook() -> None:
    """Where the cell itself runs on an event loop: that loop waits, and nothing hangs."""

    async def cell() -> None:
        with blocking.Runtime.in_memory(config=BARE) as runtime:
            chat = runtime.session("alice", "one")
            chat.append(said("hello"))
            assert chat.size() == 1

    asyncio.run(cell())


# -- the threads of a server -----------------------------------------------------------------------


def test_a_view_of_a_server() -> None:
    """Worker threads use the runtime of the event loop; the event loop itself is refused."""
    runtime = remora.Runtime.in_memory(config=BARE)
    memory = blocking.view(runtime)
    chat = memory.session("alice", "one")

    async def serve() -> None:
        async with runtime:
            await asyncio.gather(*(asyncio.to_thread(chat.append, said("hi")) for _ in range(10)))
            assert await runtime.session("alice", "one").size() == 10
            with pytest.raises(WrongLoop, match="wait for itself"):
                chat.append(said("never"))
            with pytest.raises(InvalidInput, match="a view"):
                memory.close()

    with pytest.raises(RuntimeClosed, match="open the runtime first"):
        chat.append(said("too early"))
    asyncio.run(serve())
    with pytest.raises(RuntimeClosed, match="is closed"):
        chat.append(said("too late"))
    with pytest.raises(InvalidInput, match=r"remora\.Runtime"):
        blocking.view(memory)  # type: ignore[arg-type]


def test_endpoints_that_hold_all_threads(tmp_path: Path) -> None:
    """What their calls do in a thread (long texts, exports) does not wait for one of theirs."""
    ready = threading.Barrier(2)

    async def serve() -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 2
        async with remora.Runtime(tmp_path / "memory", config=LEAN) as runtime:
            memory = blocking.view(runtime)

            def endpoint(name: str) -> None:
                chat = memory.session("alice", name)
                ready.wait()
                chat.append(said("x y " * 40_000))
                assert [one.content for one in chat.history()] == ["x y " * 40_000]
                memory.user("alice").recall("x y " * 20_000)
                assert memory.export(tmp_path / f"{name}.jsonl").users == 1

            async with anyio.create_task_group() as tasks:
                for name in ("one", "two"):
                    tasks.start_soon(anyio.to_thread.run_sync, endpoint, name)

    asyncio.run(serve())


def test_a_loop_that_does_not_run_is_refused() -> None:
    """A call would wait for ever, in every thread; nothing is done."""
    loop = asyncio.new_event_loop()
    runtime = remora.Runtime.in_memory(config=BARE)
    loop.run_until_complete(runtime.start())
    state = blocking.view(runtime).user("alice").state
    try:
        with ThreadPoolExecutor(1) as pool:
            with pytest.raises(WrongLoop, match="not running"):
                pool.submit(state.set, "tea", 1).result()
            with pytest.raises(WrongLoop, match="not running"):
                state.set("tea", 1)
            assert loop.run_until_complete(runtime.user("alice").state.get("tea")) is None
            loop.run_until_complete(asyncio.to_thread(state.set, "tea", 2))
    finally:
        loop.run_until_complete(runtime.aclose())
        loop.close()


def test_the_server_ends_during_a_call() -> None:
    """Whoever waits in a thread is told, and does not hang."""
    runtime = remora.Runtime.in_memory(config=BARE)
    outcomes: list[BaseException] = []
    waiting = threading.Event()

    async def wait_for_ever(self: remora.Session) -> int:
        waiting.set()
        await asyncio.sleep(3600)
        return 0

    def use() -> None:
        try:
            threads.call_on_loop(runtime, wait_for_ever, runtime.session("alice", "one"))
        except RuntimeClosed as e:
            outcomes.append(e)

    thread = threading.Thread(target=use)

    async def serve() -> None:
        async with runtime:
            thread.start()
            await until(waiting.is_set, "the call waits")

    asyncio.run(serve())
    thread.join()
    assert [str(one) for one in outcomes] == [
        "the event loop of the runtime ended before the call did"
    ]


INTERRUPTED = """
import signal
import sys
import remora
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from remora import blocking

class Hanging:
    name = "hanging"
    async def complete(self, messages):
        import anyio
        print("hangs", flush=True)
        await anyio.sleep_forever()

config = remora.Config.from_dict({
    "tokens": {"counter": "heuristic"}, "models": {"embedder": "none"},
    "buffer": {"token_limit": 100, "summary_tokens": 20},
})
with blocking.Runtime(sys.argv[1], config=config, chat_model=Hanging()) as runtime:
    chat = runtime.session("alice", "one")
    for number in range(20):
        chat.append({"role": "user", "content": f"sentence {number} is about gardens and trees"})
    chat.settle()
"""


def test_an_interrupt_closes_cleanly(tmp_path: Path) -> None:
    """Ctrl-C during a call: the program ends with KeyboardInterrupt, and the directory is free."""
    command = bound(sys.executable, "-c", INTERRUPTED, tmp_path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == b"hangs"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate()
    assert child.returncode in {-signal.SIGINT, 130}, errors.decode()
    assert errors.decode().strip().endswith("KeyboardInterrupt")
    with blocking.Runtime(tmp_path, config=LEAN) as runtime:
        kept = [str(one.content).split()[1] for one in runtime.session("alice", "one").history()]
    assert kept
    assert kept == [str(number) for number in range(len(kept))]
