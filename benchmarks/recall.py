"""How much of the known evidence for a question recall finds.

    python -m benchmarks.recall --data FILE [--embedder wordllama|none|hash|MODULE:NAME]
        [--limit N] [--facts FILE] [--json OUT]

FILE is JSONL as in docs/reference/replay-format.md, with questions among the turns:
``{"type": "qa", "conv", "question", "category", "evidence": [turn ids]}``. LoCoMo
(snap-research/LoCoMo, `data/locomo10.json`) and the memory questions of BFCL
(ShishirPatil/gorilla) can be written that way. Questions of category 5 (without an answer) and
without evidence are left out.

The conversations are replayed through remora itself: append, summarize, index, optimize LanceDB.
Then each question is asked by `user.recall(question, limit=20)`, and by `load(query=question)` in
a new session of the same user, with 1,000 to 8,000 tokens. For comparison, on the same rows:
LanceDB's full-text search of the turns, its hybrid query with the default reranker, and, in memory,
plain BM25 and the recipes LEX and HYB of `benchmarks.reference`; contexts that plain BM25 fills,
and contexts of the newest messages.

With ``--facts``, extraction is switched on, and the file stands for the chat model
(`benchmarks.recall_facts`); a fact that is found counts as one of the messages that it rests on.

Recall@k is the share of a question's evidence turns among the first k; hit@k says whether any of
them is; MRR goes by the first of them within 20. Intervals of 95 % are of a bootstrap over
conversations. The environment sets what is to be tried
(``REMORA_RECALL__DEPTH=200``). Without the file the exit code is 77, which most test harnesses
count as skipped.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.embedders import Hashing
from benchmarks.recall_contexts import BUDGETS, evidence_in, fill, interval
from benchmarks.recall_facts import GivenFacts, place_of
from benchmarks.reference import Reference
from remora import Config, Runtime
from remora.cli.reader import Conversations, read_conversations
from remora.cli.replay import percentile, replay
from remora.models.extractive import ExtractiveSummarizer
from remora.models.ports import Embedder, as_embedder, embed_texts
from remora.models.static import WordLlamaEmbedder
from remora.tokens import HeuristicCounter

EXIT_SKIPPED = 77
DEPTHS = (1, 5, 10, 20)
Place = tuple[str, int]  # session, seq


class Question(msgspec.Struct, frozen=True):
    """One question, and where its evidence stands."""

    user: str
    category: str
    text: str
    evidence: tuple[Place, ...]


class Answer(msgspec.Struct, frozen=True):
    """What one method gave for one question."""

    found: list[Place]
    seconds: float


class Rows(msgspec.Struct):
    """One user's rows as LanceDB holds them, in order."""

    places: list[Place]
    turns: list[str]
    tokens: list[int]
    newest_first: list[int]
    vectors: npt.NDArray[np.float32] | None


def read_questions(path: Path, conversations: Conversations) -> list[Question]:
    """The file's questions that have an answer and evidence; evidence that names no turn is left
    out.
    """
    places = {
        (session.user, planned.key.removeprefix("replay:")): (session.session, number)
        for session, messages in conversations.sessions.items()
        for number, planned in enumerate(messages, start=1)
    }
    questions = []
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        row = json.loads(line) if '"qa"' in line else {}
        if row.get("type") != "qa" or row.get("category") == 5:
            continue
        user = str(row["conv"])
        evidence = dict.fromkeys(
            places[user, turn] for turn in row.get("evidence") or () if (user, turn) in places
        )
        if evidence:
            questions.append(
                Question(user, str(row.get("category", "")), row["question"], tuple(evidence))
            )
    return questions


def make_embedder(name: str) -> Embedder | None:
    """The embedder that the command line names."""
    if name == "none":
        return None
    if name == "wordllama":
        return WordLlamaEmbedder()
    if name == "hash":
        return Hashing()
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    return as_embedder(
        found() if isinstance(found, type) else found, dimension=Config().models.embedding_dimension
    )


async def ask_remora(
    directory: Path,
    conversations: Conversations,
    questions: Sequence[Question],
    embedder: Embedder | None,
    bar: Progress,
    facts: GivenFacts | None,
) -> tuple[list[Answer], dict[int, list[Answer]]]:
    """Replay everything, and ask every question by `recall`, and by `load` with each budget."""
    given = Config.from_environment()
    config = msgspec.structs.replace(
        given,
        # Waiting for fewer fragments would leave rows outside the full-text index: slower, and
        # scored by other statistics.
        long_term=msgspec.structs.replace(given.long_term, compact_fragments=1),
        recall=msgspec.structs.replace(given.recall, deadline_s=60.0),
        models=msgspec.structs.replace(
            given.models, embedder="none" if embedder is None else given.models.embedder
        ),
    )
    recalled: list[Answer] = []
    loaded: dict[int, list[Answer]] = {budget: [] for budget in BUDGETS}
    models: dict[str, Any] = {}
    if facts is not None:
        config = msgspec.structs.replace(
            config,
            facts=msgspec.structs.replace(config.facts, enabled=True),
            synopsis=msgspec.structs.replace(config.synopsis, shown="never"),
        )
        models = {"chat_model": facts, "summarizer": ExtractiveSummarizer(HeuristicCounter().count)}
    async with Runtime(directory, config=config, embedder=embedder, **models) as runtime:
        task = bar.add_task("replaying", total=conversations.messages)
        await replay(
            runtime, conversations, concurrency=64, progress=lambda count: bar.advance(task, count)
        )
        await runtime.settle()
        await (await runtime.internals.long_term()).compact()
        task = bar.add_task("asking remora", total=len(questions))
        for name in conversations.users:  # what a first query has to load is no part of the figures
            await runtime.user(name).recall("warm", limit=1)
        for question in questions:
            user = runtime.user(question.user)
            begun = time.perf_counter()
            memories = await user.recall(question.text, limit=max(DEPTHS))
            recalled.append(
                Answer(
                    [place_of(m, question.evidence) for m in memories], time.perf_counter() - begun
                )
            )
            for budget, answers in loaded.items():
                begun = time.perf_counter()
                context = await user.session("the-question").load(
                    query=question.text, max_tokens=budget
                )
                seconds = time.perf_counter() - begun
                places = [place_of(m, question.evidence) for m in context.memories]
                answers.append(Answer(places, seconds))
            bar.advance(task)
    return recalled, loaded


async def ask_lancedb(
    directory: Path,
    users: Collection[str],
    questions: Sequence[Question],
    embedder: Embedder | None,
    bar: Progress,
) -> tuple[dict[str, Rows], dict[str, list[Answer]]]:
    """LanceDB by itself on the same tables: its full-text search, and its hybrid query; and the
    rows.
    """
    lancedb: Any = importlib.import_module("lancedb")
    match: Any = importlib.import_module("lancedb.query").MatchQuery
    reranker: Any = importlib.import_module("lancedb.rerankers").RRFReranker()
    database = await lancedb.connect_async(str(directory / "longterm"))
    homes: dict[str, Any] = {}
    rows: dict[str, Rows] = {}
    for name in (await database.list_tables(limit=10_000)).tables:
        table = await database.open_table(name)
        for user in users:
            if await table.count_rows(_mine(user)):
                homes[user] = table
                rows[user] = await _rows(table, user, vectors=embedder is not None)
    answers: dict[str, list[Answer]] = {"LanceDB full text": []}
    if embedder is not None:
        answers["LanceDB hybrid"] = []
    task = bar.add_task("asking LanceDB", total=len(questions))
    for question in questions:
        table = homes[question.user]
        for name, found in answers.items():
            begun = time.perf_counter()
            query, columns = table.query(), ["session_id", "seq", "_score"]
            if name == "LanceDB hybrid":
                assert embedder is not None
                vector = (await embed_texts(embedder, [question.text]))[0]
                query = query.nearest_to(vector).distance_type("cosine")
                columns = ["session_id", "seq"]
            query = (
                query.nearest_to_text(match(question.text, column="turn"))
                .where(_mine(question.user))
                .limit(max(DEPTHS))
            )
            query = query.rerank(reranker) if name == "LanceDB hybrid" else query.select(columns)
            result = (await query.to_arrow()).select(["session_id", "seq"]).to_pydict()
            places = list(zip(result["session_id"], result["seq"], strict=True))
            found.append(Answer(places[: max(DEPTHS)], time.perf_counter() - begun))
        bar.advance(task)
    database.close()
    return rows, answers


def _mine(user: str) -> str:
    # the digest is under a key; facts have no number
    return "user_id = '{}' AND seq > 0".format(user.replace("'", "''"))


async def _rows(table: Any, user: str, *, vectors: bool) -> Rows:
    columns = ["session_id", "seq", "turn", "tokens", "created_at"]
    columns += ["vector"] if vectors else []
    found = await table.query().where(_mine(user)).select(columns).to_arrow()
    found = found.sort_by([("session_id", "ascending"), ("seq", "ascending")])
    places = list(zip(found["session_id"].to_pylist(), found["seq"].to_pylist(), strict=True))
    matrix = None
    if vectors:
        matrix = np.array(found["vector"].to_pylist(), dtype=np.float32)
    said = list(zip(found["created_at"].to_pylist(), *zip(*places, strict=True), strict=True))
    newest_first = sorted(range(len(said)), key=said.__getitem__, reverse=True)
    tokens = found["tokens"].to_pylist()
    return Rows(places, found["turn"].to_pylist(), tokens, newest_first, matrix)


async def ask_reference(
    rows: dict[str, Rows], questions: Sequence[Question], embedder: Embedder | None, bar: Progress
) -> dict[str, list[Answer]]:
    """The in-memory recipes, on the same rows and vectors."""
    task = bar.add_task("asking the reference", total=len(questions))
    references = {
        user: Reference([session for session, _ in one.places], one.turns, one.vectors)
        for user, one in rows.items()
    }
    answers: dict[str, list[Answer]] = {"BM25 in memory": [], "LEX in memory": []}
    if embedder is not None:
        answers["HYB in memory"] = []
    for question in questions:
        reference, places = references[question.user], rows[question.user].places

        def add(name: str, rank: Callable[[], list[int]], places: list[Place] = places) -> None:
            begun = time.perf_counter()
            order = rank()
            answers[name].append(
                Answer([places[n] for n in order[: max(DEPTHS)]], time.perf_counter() - begun)
            )

        add("BM25 in memory", lambda: reference.bm25(question.text))  # noqa: B023
        add("LEX in memory", lambda: reference.lex(question.text))  # noqa: B023
        if embedder is not None:
            vector = (await embed_texts(embedder, [question.text]))[0]
            add("HYB in memory", lambda: reference.hyb(question.text, vector))  # noqa: B023
        bar.advance(task)
    return answers


def judged(questions: Sequence[Question], answers: Sequence[Answer]) -> dict[str, Any]:
    """The figures of one method, for each category and overall."""
    categories = sorted({question.category for question in questions})
    figures: dict[str, Any] = {}
    for category in ["all", *categories]:
        chosen = [
            (question, answer)
            for question, answer in zip(questions, answers, strict=True)
            if category in ("all", question.category)
        ]
        one: dict[str, Any] = {"questions": len(chosen)}
        for depth in DEPTHS:
            shares = [
                len(set(q.evidence) & set(a.found[:depth])) / len(q.evidence) for q, a in chosen
            ]
            one[f"recall@{depth}"] = sum(shares) / len(chosen)
            one[f"hit@{depth}"] = sum(share > 0 for share in shares) / len(chosen)
            by_user: dict[str, list[float]] = {}
            for (question, _), share in zip(chosen, shares, strict=True):
                by_user.setdefault(question.user, []).append(share)
            one[f"recall@{depth}_95"] = interval(by_user)
        one["mrr"] = sum(
            max(
                (1 / (rank + 1) for rank, place in enumerate(a.found) if place in q.evidence),
                default=0.0,
            )
            for q, a in chosen
        ) / len(chosen)
        figures[category] = one
    seconds = [answer.seconds for answer in answers]
    figures["p50_ms"], figures["p95_ms"] = (
        percentile(seconds, 0.5) * 1e3,
        percentile(seconds, 0.95) * 1e3,
    )
    return figures


def fill_contexts(
    rows: dict[str, Rows], questions: Sequence[Question], bar: Progress
) -> dict[str, dict[int, list[Answer]]]:
    """Contexts that plain BM25 fills, and contexts of the newest messages, of each size."""
    task = bar.add_task("filling contexts", total=len(questions))
    references = {
        user: Reference([session for session, _ in one.places], one.turns, None)
        for user, one in rows.items()
    }
    filled: dict[str, dict[int, list[Answer]]] = {
        name: {budget: [] for budget in BUDGETS}
        for name in ("filled by BM25", "the newest messages")
    }
    for question in questions:
        mine = rows[question.user]
        orders = references[question.user].bm25(question.text), mine.newest_first
        for order, answers in zip(orders, filled.values(), strict=True):
            for budget, found in answers.items():
                shown = fill(order, mine.tokens, budget)
                found.append(Answer([mine.places[number] for number in shown], 0.0))
        bar.advance(task)
    return filled


def judged_contexts(questions: Sequence[Question], answers: Sequence[Answer]) -> dict[str, Any]:
    """In how many contexts all, and any, of the evidence stands; also of each category."""
    seconds = [answer.seconds for answer in answers]
    figures: dict[str, Any] = {
        "p50_ms": percentile(seconds, 0.5) * 1e3,
        "p95_ms": percentile(seconds, 0.95) * 1e3,
    }
    for category in ["all", *sorted({question.category for question in questions})]:
        chosen = [
            (question, answer)
            for question, answer in zip(questions, answers, strict=True)
            if category in ("all", question.category)
        ]
        figures[category] = evidence_in(
            [question.evidence for question, _ in chosen],
            [answer.found for _, answer in chosen],
            [question.user for question, _ in chosen],
        )
    return figures


async def measure(
    directory: Path,
    conversations: Conversations,
    questions: Sequence[Question],
    embedder: Embedder | None,
    bar: Progress,
    facts: GivenFacts | None,
) -> dict[str, Any]:
    recalled, loaded = await ask_remora(directory, conversations, questions, embedder, bar, facts)
    rows, answers = await ask_lancedb(directory, conversations.users, questions, embedder, bar)
    answers = {"remora": recalled, **answers, **await ask_reference(rows, questions, embedder, bar)}
    contexts = {"remora": loaded, **fill_contexts(rows, questions, bar)}
    return {
        "methods": {name: judged(questions, found) for name, found in answers.items()},
        "contexts": {
            name: {budget: judged_contexts(questions, found) for budget, found in sizes.items()}
            for name, sizes in contexts.items()
        },
        "rows": sum(len(one.places) for one in rows.values()),
    }


def show(figures: dict[str, Any]) -> None:
    print(
        f"{figures['machine']}\n{figures['data']}: {figures['rows']:,} messages, "
        f"{figures['questions']:,} questions, "
        f"embedder {figures['embedder']}"
    )
    names = [f"R@{depth}" for depth in DEPTHS] + [f"hit@{depth}" for depth in DEPTHS] + ["MRR"]
    keys = [f"recall@{depth}" for depth in DEPTHS] + [f"hit@{depth}" for depth in DEPTHS] + ["mrr"]
    print(f"{'':<20}" + "".join(f"{name:>8}" for name in [*names, "p50 ms", "p95 ms"]))
    for method, one in figures["methods"].items():
        values = "".join(f"{one['all'][key]:>8.3f}" for key in keys)
        print(f"{method:<20}{values}{one['p50_ms']:>8.1f}{one['p95_ms']:>8.1f}")
    remora = figures["methods"]["remora"]
    for category, one in remora.items():
        if isinstance(one, dict) and category != "all":
            name = f"  category {category} ({one['questions']:,})"
            print(f"{name:<20}" + "".join(f"{one[key]:>8.3f}" for key in keys))
    show_contexts(figures["contexts"])
    in_memory = [one for name, one in figures["methods"].items() if name.endswith("in memory")]
    best = {key: max(one["all"][key] for one in in_memory) for key in ("recall@5", "recall@10")}
    print(
        "against the best recipe in memory: "
        + ", ".join(f"{key} {remora['all'][key] - value:+.3f}" for key, value in best.items())
    )


def show_contexts(contexts: dict[str, dict[int, dict[str, Any]]]) -> None:
    print("evidence in contexts of so many tokens, all / any of it")

    def line(name: str, cells: Sequence[str]) -> None:
        print(f"{name:<24}" + "".join(f"{cell:>16}" for cell in cells))

    line("", [f"{budget:,}" for budget in BUDGETS])
    for method, sizes in contexts.items():
        overall = [one["all"] for one in sizes.values()]
        line(method, [f"{one['all_of_it']:.3f} / {one['any_of_it']:.3f}" for one in overall])
    remora = contexts["remora"].values()
    for category in [
        name for name in next(iter(remora)) if name not in {"all", "p50_ms", "p95_ms"}
    ]:
        line(f"  category {category}, all", [f"{one[category]['all_of_it']:.3f}" for one in remora])
    if all(bounds := [one["all"]["all_of_it_95"] for one in remora]):
        line("  remora, all, 95 %", [f"{low:.3f} - {high:.3f}" for low, high in bounds])
    line("  memories", [f"{one['all']['memories']:.1f}" for one in remora])
    line("  p50 / p95 ms", [f"{one['p50_ms']:.1f} / {one['p95_ms']:.1f}" for one in remora])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="FILE",
        help="conversations and questions, JSONL",
    )
    parser.add_argument(
        "--embedder",
        default="wordllama",
        help="wordllama, none, hash, or module:name of an embedder or its class",
    )
    parser.add_argument(
        "--limit", type=int, help="ask at most so many questions, spread evenly over the file"
    )
    parser.add_argument(
        "--facts",
        type=Path,
        metavar="FILE",
        help="facts that a chat model would extract, JSONL: type (fact), conv, text, sources",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there, too")
    options = parser.parse_args()
    if not options.data.is_file():
        print(
            f"skipped: there is no file {options.data}; "
            "docs/reference/replay-format.md says what it holds",
            file=sys.stderr,
        )
        raise SystemExit(EXIT_SKIPPED)
    logging.getLogger("remora").setLevel(
        logging.ERROR
    )  # each load is told of a summarizer that it does not use
    conversations = read_conversations(options.data)
    questions = read_questions(options.data, conversations)
    if options.limit and options.limit < len(questions):
        questions = [questions[n * len(questions) // options.limit] for n in range(options.limit)]
    if not questions:
        print(f"skipped: {options.data} has no questions with evidence", file=sys.stderr)
        raise SystemExit(EXIT_SKIPPED)
    embedder = make_embedder(options.embedder)
    facts = None if options.facts is None else GivenFacts(options.facts, conversations)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with (
        Progress(*columns, console=Console(stderr=True)) as bar,
        tempfile.TemporaryDirectory() as temporary,
    ):
        figures = anyio.run(
            measure, Path(temporary), conversations, questions, embedder, bar, facts
        )
    figures = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python "
        f"{platform.python_version()}",
        "data": options.data.name,
        "embedder": embedder.name if embedder else "none",
        "questions": len(questions),
        **figures,
    }
    show(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
