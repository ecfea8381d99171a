"""``remora tune``: weights that are better elsewhere, honest figures, and labels that are wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Config, Message, Runtime
from tests.harness import user
from tests.programs import run_command

USERS = ("ann", "bea", "cem", "dora", "eli")
TOPICS = ("ladder", "lantern", "kettle", "violin")
CONFIG = """
tokens: {counter: heuristic}
journal: {durability: process}
models: {embedder: none}
long_term: {batch_ms: 1}
recall: {user_prior: 1.0}
"""
"""With a weight that is wrong here: an assistant's chatter counts as much as what users say."""


def question(user: str, topic: str, **more: Any) -> dict[str, Any]:
    return {
        "user": user,
        "query": f"Where is my {topic}?",
        "relevant": [f"{topic.capitalize()} of {user}: in the cellar, below the stairs."],
        **more,
    }


async def fill(directory: Path, config: Config) -> None:
    async with Runtime(directory, config=config) as runtime:
        for name in USERS:
            for topic in TOPICS:
                long = f"A {topic} among many other words of a rather long answer about rain"
                chatter = [f"{topic}, {topic}: {topic} {n} is fine today" for n in range(36)]
                chatter += [f"{long}, {long.lower()} {n}" for n in range(4)]
                said = [user(question(name, topic)["relevant"][0])]
                await runtime.session(name, topic).append(
                    said + [Message.assistant(text) for text in chatter]
                )
        await runtime.session("ann", "ladder").flush()  # the others are not indexed
        await runtime.settle()


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``memory``, ``remora.yaml`` and ``labels.jsonl``."""
    path = tmp_path_factory.mktemp("tune")
    (path / "remora.yaml").write_text(CONFIG)
    anyio.run(fill, path / "memory", Config.from_file(path / "remora.yaml"))
    write(path / "labels.jsonl", *(question(user, topic) for user in USERS for topic in TOPICS))
    return path


def write(path: Path, *rows: Any) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return path


def tune(memory: Path, labels: Path, *more: str) -> int:
    where = ["--dir", str(memory / "memory"), "--config", str(memory / "remora.yaml")]
    return run_command("tune", labels, *where, *more)


async def recall_of_the_product(memory: Path, config: Config) -> float:
    """The share of the questions whose answer is among the first ten."""
    async with Runtime(memory / "memory", config=config) as runtime:
        hits = []
        for name, topic in product(USERS, TOPICS):
            one = question(name, topic)
            found = await runtime.user(name).recall(one["query"], limit=10)
            hits.append(one["relevant"][0] in [memory.text for memory in found])
    return sum(hits) / len(hits)


def test_a_wrong_weight_is_found(
    memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On users that it was not fitted to; the section is one that `Config` reads."""
    output = tmp_path / "recall.toml"
    assert tune(memory, memory / "labels.jsonl", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["questions"], report["users"], report["parts"]) == (20, 5, 5)
    assert report["by_user"]
    assert report["verdict"] == "better"
    assert report["weights"]["user_prior"] > 1
    found = report["gains"]["recall@10"]
    assert found["before"] == pytest.approx(
        anyio.run(recall_of_the_product, memory, Config.from_file(memory / "remora.yaml"))
    )
    assert found["after"] - found["before"] > 0.5
    assert found["low"] > 0
    assert tune(memory, memory / "labels.jsonl", "--output", str(output)) == 0
    shown = capsys.readouterr().out
    assert "The fitted weights are better" in shown
    assert output.read_text() in shown
    assert Config.from_file(output).recall.user_prior == report["weights"]["user_prior"]


def test_random_labels_are_no_better(
    memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Questions about nothing that was said: there is nothing to fit, and it says so."""
    labels = [question(user, topic, query="zzz") for user in USERS for topic in TOPICS]
    output = tmp_path / "recall.toml"
    labelled = write(tmp_path / "labels.jsonl", *labels)
    assert tune(memory, labelled, "--output", str(output)) == 0
    shown = capsys.readouterr().out
    assert "keep them" in shown
    assert "was not written: no weight changes" in " ".join(shown.split())
    assert not output.exists()


def test_one_user(memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their questions are split, and the figures say that nobody else was asked."""
    labels = [question("ann", topic, query=f"{topic}{n}") for topic in TOPICS for n in range(3)]
    assert tune(memory, write(tmp_path / "labels.jsonl", *labels)) == 0
    shown = capsys.readouterr().out
    assert "figures of questions that the weights were not fitted to" in shown
    assert "about one user" in shown


def test_three_ways_to_name_a_memory(
    memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.from_file(memory / "remora.yaml")

    async def find() -> str:
        async with Runtime(memory / "memory", config=config) as runtime:
            (found,) = await runtime.user("ann").recall("cellar stairs ladder", limit=1)
            return found.id

    names = (
        anyio.run(find),
        "  LADDER of ann: in the cellar,   below the stairs.",
        {"session": "ladder", "seq": 1},
    )
    figures = []
    for name in names:
        labels = [question("ann", "ladder", relevant=[name])] * 10
        assert tune(memory, write(tmp_path / "labels.jsonl", *labels), "--json") == 0
        figures.append(json.loads(capsys.readouterr().out)["gains"])
    assert figures[0] == figures[1] == figures[2]


GOOD = json.dumps(question("ann", "ladder"))


WRONG = [
    ("{", "line 2: Input data was truncated"),
    ('["ann"]', "line 2: Expected `object`, got `array`"),
    ('{"user": "ann", "relevant": ["x"]}', "line 2: Object missing required field `query`"),
    ('{"user": "", "query": "q", "relevant": ["x"]}', "`$.user`"),
    ('{"user": "ann", "query": "q", "relevant": []}', "`$.relevant`"),
    ('{"user": "ann", "query": "q", "relevant": "x"}', "`$.relevant`"),
    ('{"user": "ann", "query": "q", "relevant": [{"session": "s"}]}', "field `seq`"),
    ('{"user": "zoe", "query": "q", "relevant": ["x"]}', "there is no user 'zoe'"),
    (
        '{"user": "ann", "query": "q", "relevant": ["never said"]}',
        "line 2: 'ann' has no memory 'never said'",
    ),
    (
        '{"user": "ann", "query": "q", "relevant": [{"session": "ladder", "seq": 99}]}',
        "line 2: 'ann' has no memory ladder #99",
    ),
]


def test_wrong_labels(memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line is named, and nothing is fitted; of many, some are named and the rest is counted.
    Missing memories may be skipped.
    """

    def refused(*rows: Any, more: Sequence[str] = ()) -> str:
        assert tune(memory, write(tmp_path / "labels.jsonl", *rows), *more) == 1
        return " ".join(capsys.readouterr().err.split())

    for row, why in WRONG:
        assert why in refused(GOOD, row, *[GOOD] * 10)
    assert "; and 3 more" in refused(*["{"] * 8)
    gone = question("ann", "ladder", relevant=["never said"])
    labels = write(tmp_path / "labels.jsonl", gone, *[GOOD] * 10)
    assert tune(memory, labels, "--skip-missing") == 0
    assert "left out: 1 question" in capsys.readouterr().out
    said = refused(gone, *[GOOD] * 9, more=["--skip-missing"])
    assert "9 questions with known answers" in said


def test_files(memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No labels, or an output that is in the way or of another kind: nothing is fitted. Nor is it
    where a user has too many memories: whoever is searched in the store is ranked from others.
    """
    there = write(tmp_path / "there.toml", "# mine")
    labels = memory / "labels.jsonl"
    (tmp_path / "remora.yaml").write_text(CONFIG.replace("1.0}", "1.0, hot_rows: 5}"))
    (tmp_path / "memory").symlink_to(memory / "memory")
    for directory, arguments, why in (
        (memory, [labels, "--output", str(there)], "exists"),
        (memory, [labels, "--output", str(tmp_path / "weights.yaml")], "must end in .toml"),
        (memory, [tmp_path / "none.jsonl"], "cannot be read"),
        (memory, [write(tmp_path / "empty.jsonl")], "has no questions"),
        (tmp_path, [labels], "more memories than recall.hot_rows"),
    ):
        assert tune(directory, *arguments) == 1
        assert why in " ".join(capsys.readouterr().err.split())
    assert there.read_text() == "# mine\n"
