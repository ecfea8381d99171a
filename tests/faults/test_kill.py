"""``kill -9`` of processes at their work, on real SQLite and LanceDB: what they heard of is there,
once and whole. The nightly run kills each again and again.

    python -m tests.faults.test_kill WORK DIRECTORY [WORD …]

is such a process. It does one kind of work without end, and says how far it is.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import msgspec
import pytest

from benchmarks.killing import kill_again_and_again
from remora import Config, KeyedState, Runtime, Session
from remora.actors.blocks.state import block_progress
from remora.actors.blocks.vector import BLOCK_AGENT
from remora.blocks import BaseMemoryBlock, ChatMessage, VectorMemoryBlock
from remora.cli.replay import read_conversations
from remora.errors import StateConflict
from remora.ids import row_id, user_key
from remora.maintenance.backup import backup
from remora.maintenance.repair import repair
from remora.maintenance.verify import verify
from remora.messages import ChatDict
from remora.storage.ports import Journal
from remora.storage.postgres import PostgresJournal
from remora.storage.sqlite import journal as sqlite_journal
from remora.testing import HashEmbedder
from remora.tokens import CallableCounter
from tests.copies import copy_memory
from tests.facts import FactModel
from tests.facts import config as facts_config
from tests.faults.kills import kills_of, work_and_kill
from tests.faults.upkeep_kills import KINDS, kill_within
from tests.lance import held, lance, put, rows_of
from tests.postgres import running_cluster
from tests.programs import run_command
from tests.sqlite import BreakableConnection

# processes are waited for, and files are looked at, while nothing else runs
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "long_term": {"batch_ms": 1, "shards": 2},
        "supervisor": {"backoff_s": 0.01},
    }
)
LEAN: dict[str, Any] = {"long_term": {"enabled": False}, "models": {"embedder": "none"}}


def tell(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201


def killed(work: str, directory: Path, *words: object, **when: Any) -> list[list[str]]:
    """Start a kind of work, and kill it; the words of each line that it said."""
    said = work_and_kill("-m", "tests.faults.test_kill", work, directory, *words, **when)
    return [line.split() for line in said]


# -- a replay --------------------------------------------------------------------------------------


def replay(*words: str) -> None:
    """``remora replay``, which says when it has committed."""

    def told(_: BreakableConnection) -> None:
        tell("committed")

    with (
        mock.patch.object(sqlite_journal, "JournalConnection", BreakableConnection),
        mock.patch.object(BreakableConnection, "after_commit", told),
    ):
        run_command("replay", *words)


@kills_of(3)
async def test_replay(tmp_path: Path, kills: int) -> None:
    """G3, G4, G7, S5.02, S1.11: after any number of kills, one whole run gives the state that an
    unharmed run gives.
    """
    rng = random.Random(7)
    file, directory = tmp_path / "chats.jsonl", tmp_path / "memory"
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    with file.open("w") as out:
        for user, session in itertools.product(range(6), range(3)):
            messages: list[dict[str, Any]] = []
            for n in range(6):
                asked = f"Question {n} of {user}.{session} about gardens and bridges"
                answer = f"Answer {n}: the bridge is {rng.randrange(900)} m long."
                messages += [
                    {"role": "user", "content": asked},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c", "content": f"result {n}"},
                    {"role": "assistant", "content": answer},
                ]
            line = {"user": f"u{user}", "session": f"s{session}", "messages": messages}
            out.write(json.dumps(line) + "\n")
    words = [str(file), "--dir", str(directory), "--token-limit", "300"]
    for _ in range(kills):
        work_and_kill(
            *("-m", "tests.faults.test_kill", "replay", *words),
            when="committed",
            count=rng.randrange(8, 25),
        )
    for told in ("each once", " 0 added"):
        command = [sys.executable, "-m", "remora", "replay", *words]
        whole = subprocess.run(command, capture_output=True, text=True, check=True)
        assert told in whole.stdout
    config = Config.from_dict({"buffer": {"token_limit": 300}})
    async with Runtime(directory, config=config) as runtime:
        await runtime.settle()
        rows: list[str] = []
        for key, planned in read_conversations(file).sessions.items():
            history = await runtime.session(*key).history()
            wanted = [{"content": None, **one.message} for one in planned]
            assert [one.to_chat() for one in history] == wanted
            rows += [row_id(key, one.seq or 0) for one in history]
        assert sorted(await (await runtime.internals.long_term()).row_ids()) == sorted(rows)
        assert (await runtime.counts()).dead_jobs == 0


# -- load, and upkeep ------------------------------------------------------------------------------


@kills_of(4)
def test_load(tmp_path: Path, kills: int) -> None:
    """G2, G3, G4, G7, G8: killed while sixteen sessions talk and fold, what the killer heard of is
    there, once and whole.
    """
    acknowledged, seeds = 0, itertools.count(3)
    while acknowledged <= 50:
        seed = next(seeds)
        report = kill_again_and_again(tmp_path / f"{seed}", kills, seed=seed, each=kills)
        assert report.wrong == []
        assert report.kills == kills
        assert report.resumed_s or kills == 1
        acknowledged += report.verdict.acknowledged


@kills_of(4)
@pytest.mark.parametrize("kind", KINDS)
def test_upkeep(kind: str, tmp_path: Path, kills: int) -> None:
    """G3, G4, G7, G13: nothing is lost, doubled, damaged or refused at the next start, and nothing
    of a forgotten user is left in a file.
    """
    acknowledged, seeds = 0, itertools.count(1)
    while not acknowledged:  # a kill may come before the first message is
        seed = next(seeds)
        figures = kill_within(kind, tmp_path / f"{seed}", kills, seed=seed)
        assert figures.wrong == []
        assert figures.kills == kills
        acknowledged = figures.acknowledged


# -- the bare store --------------------------------------------------------------------------------

USERS = ("alice", "bob", "carol", "dora")


async def write_rows(base: str, number: str) -> None:
    """Adds, merges, deletes, compacts and erases."""
    rng, first = random.Random(number), int(number) * 10**6
    options: dict[str, Any] = {
        "compact_fragments": 3,
        "keep_versions_s": 0.01,
        "index_user_rows": 20,
    }
    async with lance(Path(base), **options) as store:
        for step in itertools.count():
            user = rng.choice(USERS)
            match rng.randrange(12):
                case 0:
                    tell("compacting")
                    await store.compact()
                    tell("compacted")
                case 1 if user == "dora":
                    tell("erasing", user)
                    await store.erase(user_key(user))
                    tell("erased", user)
                case 2:
                    (row,) = rows_of(user, [first + rng.randrange(step + 1)])
                    tell("deleting", row.id)
                    await store.delete(user, [row.id])
                    tell("deleted", row.id)
                case choice:
                    (row,) = rows_of(user, [first + step])
                    tell("adding", row.id)
                    await put(store, [row], may_exist=choice == 3)
                    tell("added", row.id)


@kills_of(4)
async def test_store(tmp_path: Path, kills: int) -> None:
    """G3, G6, G7, G13: acknowledged rows are there once, deleted and erased ones are not; of the
    last verb it may be either.
    """
    rng = random.Random(11)
    base, expected = tmp_path / "lance", set[str]()
    for number in range(kills):
        pause_s, count = rng.random() * 0.05, rng.randrange(20, 60)
        lines = killed("write_rows", base, number, when="added", count=count, pause_s=pause_s)
        begun = _replayed(lines, expected)
        async with lance(base) as store:
            assert not store.refill_needed, number
            found = await held(store, USERS)
            assert len(found) == len(set(found)), number
            may_exist = {one for one in expected | set(found) if begun and _concerns(begun, one)}
            assert set(found) - may_exist == expected - may_exist, number
            assert sorted(await store.row_ids()) == found
            expected = set(found)
            if begun[:1] == ["adding"]:  # as the job does that was never told that it is done
                user, _, n = begun[1].rpartition("-")
                await put(store, rows_of(user, [int(n)]), may_exist=True)
                expected.add(begun[1])
            assert await held(store, USERS) == sorted(expected)
            assert list(await store.verify(deep=True)) == []
    async with lance(base) as store:
        for user in USERS:
            await store.erase(user_key(user))
        assert await held(store, USERS) == []
    for path in base.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not any(user_key(user).encode() in content for user in USERS), path
        assert not path.name.startswith(".tmp")


def _replayed(lines: list[list[str]], expected: set[str]) -> list[str]:
    """Take what was acknowledged; returns what was begun and not acknowledged."""
    for line in lines:
        match line:
            case ["added", id_]:
                expected.add(id_)
            case ["deleted", id_]:
                expected.discard(id_)
            case ["erased", user]:
                expected.difference_update([one for one in expected if one.startswith(user)])
    return [] if lines[-1][0].endswith("ed") else lines[-1]


def _concerns(begun: list[str], id_: str) -> bool:
    return begun[1:] == [id_] or (begun[0] == "erasing" and id_.startswith(begun[1]))


# -- memories --------------------------------------------------------------------------------------

FACT = re.compile(r"fact (\d+) in version (\d+)")
Versions = dict[int, set[int]]
"""By fact, the versions that it may have; 0: it is deleted, or never was."""


def text_of(fact: int, version: int) -> str:
    return f"fact {fact} in version {version} is about bridges"


async def change_memories(directory: str, run: str) -> None:
    """Records, changes and deletes memories; says before what it does with which, and after."""
    rng = random.Random(run)
    async with Runtime(directory, config=CONFIG, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        known = {one.key: one for one in await alice.remembered(limit=None)}
        for number in itertools.count(int(run) * 1_000 + 1):
            fact = rng.randrange(12)
            key = f"fact-{fact}"
            there = known.get(key)
            version = 0 if there is not None and rng.random() < 0.25 else number
            tell("doing", fact, version)
            if there is None:
                (id_,) = await alice.remember(text_of(fact, version), key=key)
                found = await alice.memory(id_)
                assert found is not None
                known[key] = found
            elif version:
                known[key] = await alice.update_memory(there.id, text_of(fact, version))
            else:
                assert (await alice.delete(there.id)).deleted == 1
                del known[key]
            tell("done", fact, version)
            if rng.random() < 0.2:
                await alice.settle()


async def shown(runtime: Runtime) -> set[tuple[int, int]]:
    """Facts and versions, wherever remora shows them; the journal's own are in all of them."""
    alice = runtime.user("alice")
    texts = [one.text for one in await alice.remembered(limit=None)]
    kept = _read(texts)
    texts += [one.text for one in await alice.recall("bridges", limit=1_000)]
    texts += [one.text for one in await alice.memories()]
    texts += (await alice.export_arrow()).column("content").to_pylist()
    assert _read(texts) == kept
    return kept


def _read(texts: list[Any]) -> set[tuple[int, int]]:
    return {(int(fact), int(version)) for text in texts for fact, version in FACT.findall(text)}


async def judge(directory: Path, versions: Versions, **options: Any) -> set[tuple[int, int]]:
    """Open a directory; what it shows is what was acknowledged, before and after it is indexed."""
    options.setdefault("embedder", HashEmbedder())
    async with Runtime(directory, config=CONFIG, **options) as runtime:
        before = await shown(runtime)
        await runtime.reembedded()
        await runtime.settle()
        assert await shown(runtime) == before
        rows = (await runtime.user("alice").export_arrow()).column("content").to_pylist()
        assert sorted(rows) == sorted(text_of(*one) for one in before)
    for fact, allowed in versions.items():
        assert dict(before).get(fact, 0) in allowed
    assert {fact for fact, _ in before} <= versions.keys()
    return before


@kills_of(2)
async def test_memories(tmp_path: Path, kills: int) -> None:
    """G3, G4, G7: killed, restored from a backup of a killed directory, its tables lost and filled
    again, repaired, and embedded by another embedder: each memory says what it said last.
    """
    directory, versions = tmp_path / "memory", Versions()
    for run in range(kills):
        for what, *numbers in killed("change_memories", directory, run, when="done", count=24):
            fact, version = map(int, numbers)
            if what == "doing":
                versions.setdefault(fact, {0}).add(version)
            else:
                versions[fact] = {version}
    await backup(directory, tmp_path / "backup", CONFIG)
    for name in ("lost", "repaired", "reembedded"):
        copy_memory(tmp_path / "backup", tmp_path / name)
    kept = await judge(directory, versions)
    assert len(kept) > 3
    assert await judge(tmp_path / "backup", versions) == kept
    for name in ("lost", "repaired"):
        for tables in (tmp_path / name).glob("longterm*"):
            shutil.rmtree(tables)
    assert await judge(tmp_path / "lost", versions) == kept
    await repair(tmp_path / "repaired", CONFIG)
    assert await judge(tmp_path / "repaired", versions) == kept
    assert (await verify(tmp_path / "repaired", CONFIG)).clean
    other = HashEmbedder(96)
    assert await judge(tmp_path / "reembedded", versions, embedder=other, reembed=True) == kept


# -- facts -----------------------------------------------------------------------------------------

FACTS = facts_config()
SESSIONS = ("one", "two")


class TalkingModel(FactModel):
    """Says when it is asked, and when it has answered."""

    async def complete(self, messages: Sequence[ChatDict]) -> str:
        tell("asked")
        answer = await super().complete(messages)
        tell("answered")
        return answer


async def extract_facts(directory: str, run: str) -> None:
    """Has a model extract facts of messages, and says which message is acknowledged."""
    async with Runtime(directory, config=FACTS, chat_model=TalkingModel()) as runtime:
        for number in itertools.count():
            chat = runtime.session("alice", SESSIONS[number % 2])
            text = f"n{number % 7} is r{run}v{number}"
            await chat.append({"role": "user", "content": text})
            tell("said", text)
            await chat.flush()
            if number % 3 == 0:
                await chat.settle()


async def facts_of(directory: Path) -> Counter[str]:
    """All facts, once all of them are extracted; each is there once, wherever it is shown."""
    async with Runtime(directory, config=FACTS, chat_model=FactModel()) as runtime:
        for name in SESSIONS:
            await runtime.session("alice", name).flush()
        await runtime.reembedded()
        await runtime.settle()
        alice = runtime.user("alice")
        listed = Counter([one.text for one in await alice.remembered(types="fact", limit=None)])
        assert Counter([one.text for one in await alice.memories("fact")]) == listed
        holding = [one.text for one in await alice.recall("n0 n1 n2 n3", types="fact", limit=100)]
        assert max(Counter(text.split()[0] for text in holding).values()) == 1
        return listed


@kills_of(3)
async def test_facts(tmp_path: Path, kills: int) -> None:
    """G3, G4, G7: killed while the model is asked, when it has answered, and in between, no fact is
    lost and none is there twice; a copy has the same, and so has one that is repaired after its
    tables were lost.
    """
    directory, said = tmp_path / "memory", list[str]()
    for run, (word, count) in enumerate((("said", 9), ("asked", 3), ("answered", 4))[:kills]):
        lines = killed("extract_facts", directory, run, when=word, count=count)
        said += [" ".join(text) for what, *text in lines if what == "said"]
    copy_memory(directory, tmp_path / "killed")
    facts = await facts_of(directory)
    assert set(facts.values()) == {1}
    assert set(said) <= facts.keys()  # of the last one, the answer may not have come
    assert len(facts) <= len(said) + kills
    await backup(directory, tmp_path / "backup", FACTS)
    assert (await verify(tmp_path / "backup", FACTS)).clean
    for tables in (tmp_path / "backup").glob("longterm*"):
        shutil.rmtree(tables)
    await repair(tmp_path / "backup", FACTS)
    assert await facts_of(tmp_path / "backup") == facts
    assert await facts_of(tmp_path / "killed") == facts


# -- keyed state -----------------------------------------------------------------------------------

Expected = dict[tuple[str, str], tuple[int, int]]
"""Value and version, by place and key."""


def state_of(runtime: Runtime, number: int) -> KeyedState:
    alice = runtime.user("alice")
    return alice.state if number % 2 else alice.session("one").state


async def change(runtime: Runtime, number: int, expected: Expected, used: Counter[str]) -> None:
    """Do the change of this number, and note it in `expected`."""
    state, place, key = state_of(runtime, number), f"place {number % 2}", f"key {number % 6}"
    _, version = expected.get((place, key), (0, 0))
    if number % 7 == 6 and version:
        assert await state.delete(key, version=version)
        del expected[place, key]
        return
    stored = await state.set(key, number, version=version)
    used[place] += 1
    assert stored.version == used[place]
    expected[place, key] = (number, stored.version)


async def change_state(directory: str, when: str, commit: str) -> None:
    """Changes keyed state until it kills itself within a commit: before or after it."""
    expected, used, commits = Expected(), Counter[str](), itertools.count(1)

    def count(_: BreakableConnection) -> None:
        if next(commits) == int(commit):
            os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(sqlite_journal, "JournalConnection", BreakableConnection):
        async with Runtime(directory, config=Config.from_dict(LEAN)) as runtime:
            with mock.patch.object(BreakableConnection, f"{when}_commit", count):
                for number in itertools.count():
                    await change(runtime, number, expected, used)
                    tell(number)


@pytest.mark.parametrize(
    ("when", "commit"),
    [
        ("after", 12),
        pytest.param("before", 12, marks=pytest.mark.nightly),
        pytest.param("after", 15, marks=pytest.mark.nightly),
    ],
)
async def test_keyed_state(tmp_path: Path, when: str, commit: int) -> None:
    """G3, G4: what was acknowledged is there; a change that was not is there if its commit was; its
    caller, who gives the same version again, succeeds, or is told of the value that it has set; and
    no version is used again.
    """
    heard = len(killed("change_state", tmp_path, when, commit))
    assert heard > 8
    expected, used, config = Expected(), Counter[str](), Config.from_dict(LEAN)
    async with Runtime.in_memory(config=config) as model:
        for number in range(heard):
            await change(model, number, expected, used)
    async with Runtime(tmp_path, config=config) as runtime:
        kept = {
            (f"place {place}", one.key): (one.value, one.version)
            for place in (0, 1)
            for one in await state_of(runtime, place).items()
        }
        if when == "before":
            assert kept == expected
            await change(runtime, heard, expected, used)
        else:
            place, key = f"place {heard % 2}", f"key {heard % 6}"
            _, version = expected.get((place, key), (0, 0))
            with pytest.raises(StateConflict) as caught:
                await change(runtime, heard, expected.copy(), used.copy())
            assert (caught.value.expected, caught.value.value) == (version, heard)
            expected[place, key] = (heard, caught.value.actual)
            assert kept == expected
            used[place] += 1
        for number in range(heard + 1, heard + 20):
            await change(runtime, number, expected, used)


# -- turns -----------------------------------------------------------------------------------------

TURNS = Config.from_dict({**LEAN, "buffer": {"token_limit": 400, "summary_tokens": 60}})


def open_turns(directory: str | Path, dsn: str = "") -> Runtime:
    """With the address of a PostgreSQL, the journal is there."""

    async def open_journal() -> Journal:
        return await PostgresJournal.open(dsn, durability="process", lease_s=0)

    return Runtime(directory, config=TURNS, journal=open_journal if dsn else None)


def answered(number: int) -> list[Any]:
    """What a conversation holds of a turn that was answered."""
    tool = [None, f"result {number}"] if number % 3 == 0 else []
    return [f"question {number}", *tool, f"answer {number}, word by word"]


async def answer_words(number: int) -> AsyncIterator[str]:
    for word in (f"answer {number}", ", word", " by", " word"):
        yield word


async def ask(chat: Session, number: int) -> None:
    """Ask until there is an answer: with a call of a tool, or after a stream that was interrupted,
    as the turn's number says.
    """
    while True:
        async with chat.turn(f"question {number}", key=f"request-{number}") as turn:
            if turn.replayed:
                assert [one.content for one in turn.replies] == answered(number)[1:]
                return
            calls = number % 3 == 0
            if calls and not turn.replies:
                function = {"name": "look", "arguments": "{}"}
                call = {"id": f"call-{number}", "type": "function", "function": function}
                said: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
                await turn.reply(said)
            if calls and len(turn.replies) == 1:
                result: dict[str, Any] = {"role": "tool", "tool_call_id": f"call-{number}"}
                await turn.reply({**result, "content": f"result {number}"})
            passing = turn.stream(answer_words(number))
            if number % 4 == 0 and not turn.resumed:
                await anext(passing)
                continue  # the block ends: what was streamed is kept, incomplete
            async for _ in passing:
                pass


async def take_turns(directory: str, *dsn: str) -> None:
    """Asks and answers, and says which turns it has heard the end of."""
    async with open_turns(directory, *dsn) as runtime:
        for number in itertools.count():
            await ask(runtime.session("alice", "one"), number)
            tell(number)


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    """Nothing, or the address of a PostgreSQL."""
    if request.param == "sqlite":
        yield ()
    else:
        with running_cluster() as cluster:
            yield (cluster.dsn(),)


@kills_of(2)
async def test_turns(tmp_path: Path, where: tuple[str, ...], kills: int) -> None:
    """G3, G4: what a process heard of is there after any kill, once and whole, and a retry ends
    what was cut.
    """
    rng, heard = random.Random(11), -1
    for _ in range(kills):
        after = heard + rng.randrange(4, 11)
        (heard,) = map(int, killed("take_turns", tmp_path, *where, when=f"{after}")[-1])
    async with open_turns(tmp_path, *where) as runtime:
        chat = runtime.session("alice", "one")
        before = [one.content for one in await chat.history()]
        done = [text for number in range(heard + 1) for text in answered(number)]
        assert before[: len(done)] == done
        for number in range(heard + 3):  # all of them again, and what was cut
            await ask(chat, number)
        history = await chat.history()
        wanted = [text for number in range(heard + 3) for text in answered(number)]
        assert [one.content for one in history] == wanted
        assert not any(one.metadata for one in history)


# -- long-term memory is embedded anew -------------------------------------------------------------


class SlowEmbedder(HashEmbedder):
    async def embed(self, texts: Sequence[str]) -> Any:
        await anyio.sleep(0.01)
        return await super().embed(texts)


async def reembed(directory: str) -> None:
    """Makes long-term memory for another embedder, and says how far it is."""
    async with Runtime(
        directory, config=CONFIG, embedder=SlowEmbedder(96), reembed=True
    ) as runtime:
        await runtime.reembedded(lambda done, total: tell("rebuilt", done, total))


@kills_of(4)
async def test_reembedding(tmp_path: Path, kills: int) -> None:
    """G4, G7, G12: in the end each row is there once, and the directory of before is gone."""
    rng = random.Random(11)
    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
        for number in range(60):
            chat = runtime.session(f"u{number % 7}", f"s{number}")
            texts = [f"Sentence {place} of {number}" for place in range(3)]
            await chat.append([{"role": "user", "content": text} for text in texts])
            await chat.flush()
        await runtime.user("u1").remember(["Prefers metric units", "Keeps bees"])
        await runtime.settle()
        wanted = sorted(await (await runtime.internals.long_term()).row_ids())
    for _ in range(kills):
        lines = killed("reembed", tmp_path, when="rebuilt", count=rng.randrange(2, 6))
        assert lines[-1][1] != lines[-1][2], "it was over before it was killed"
    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder(96), reembed=True) as runtime:
        await runtime.reembedded()
        assert runtime.reembedding is None
        store = await runtime.internals.long_term()
        assert sorted(await store.row_ids()) == wanted
        _, vectors = await store.embedded_rows("u1")
        assert vectors is not None
        assert vectors.shape[1] == 96
    assert [path.name for path in tmp_path.glob("longterm*")] == ["longterm-2"]


# -- blocks ----------------------------------------------------------------------------------------

MESSAGES = 60


class Recording(BaseMemoryBlock[str]):
    seqs: list[int] = []  # noqa: RUF012

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        return str(len(self.seqs))

    async def _aput(self, messages: list[ChatMessage]) -> None:
        for one in messages:
            await anyio.lowlevel.checkpoint()
            self.seqs.append(one.seq or 0)


def open_blocks(directory: str | Path) -> Runtime:
    buffer = {"token_limit": 100, "token_flush_size": 20, "summary_tokens": 30}
    return Runtime(
        directory,
        config=Config.from_dict({"buffer": buffer, "long_term": {"batch_ms": 5}}),
        counter=CallableCounter(str.split),
        embedder=HashEmbedder(64),
        blocks=[Recording(name="rec"), VectorMemoryBlock(name="batches")],
    )


async def fill_blocks(directory: str) -> None:
    """Sessions talk, and their blocks take in what leaves the buffers."""

    async def talk(chat: Session) -> None:
        for n in range(MESSAGES):
            text = f"({chat.key.session}.{n}) bees and honey"
            await chat.append({"role": "user", "content": text}, key=f"k{n}")
            tell("appended")

    async with open_blocks(directory) as runtime:
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(talk, runtime.session("alice", f"s{number}"))
        await runtime.settle()


@kills_of(3)
async def test_blocks(tmp_path: Path, kills: int) -> None:
    """S3.12, S3.15, G7: a block's journalled state, and its rows, hold each message that left a
    buffer, once.
    """
    rng = random.Random(11)
    for _ in range(kills):
        count, pause_s = rng.randrange(40, 300), rng.random() * 0.05
        killed("fill_blocks", tmp_path, when="appended", count=count, pause_s=pause_s)
    await fill_blocks(str(tmp_path))
    async with open_blocks(tmp_path) as runtime:
        rows = await (await runtime.internals.long_term()).rows("alice")
        for session in (f"s{number}" for number in range(6)):
            view = await runtime.session("alice", session).inspect()
            left = list(range(1, view.watermarks.archived_through + 1))
            assert view.last_seq == MESSAGES
            assert len(left) > MESSAGES // 2
            progress = block_progress(view.blocks)
            assert msgspec.msgpack.decode(progress["rec"].state)["seqs"] == left
            mine = [
                row.content
                for row in rows
                if (row.agent, row.session) == (f"{BLOCK_AGENT}batches", session)
            ]
            found = [int(n) + 1 for n in re.findall(rf"\({session}\.(\d+)\)", " ".join(mine))]
            assert sorted(found) == left
        assert (await runtime.counts()).dead_jobs == 0


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    if name == "replay":
        replay(*arguments)
    else:
        anyio.run(globals()[name], *arguments)
