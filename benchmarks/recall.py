"""How much of the known evidence for a question recall finds.

    python -m benchmarks.recall [--data FILE …] [--embedder wordllama|minilm|none|hash|MODULE:NAME]
        [--limit N] [--facts FILE] [--json OUT] [--check]
    python -m benchmarks.recall --plots docs/evidence/plots

FILE is JSONL as in docs/reference/replay-format.md, with questions among the turns:
``{"type": "qa", "conv", "question", "category", "evidence": [turn ids]}``; or a published set as it
is downloaded: LoCoMo, LongMemEval, BEAM, MemoryAgentBench, REALTALK or RealMem
(`benchmarks.recall_readers` says which files). Without it, the sets of `benchmarks.synthetic` are
taken: chats, a desk's tool calls and results, and a person's daily life. ``--check`` holds the
figures against `benchmarks/bars.toml`, and exits with 1 if one is missed. Questions without
evidence are left out; of those without an answer (category 5 or ``unanswerable``) only the size of
what `load` recalls is measured.

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
conversations. The environment sets what is to be tried (``REMORA_RECALL__DEPTH=200``). The second
line draws docs/evidence/data/recall.json. If the file is not there, the exit code is 77, which most
test harnesses count as skipped.
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
from typing import Any, cast

import anyio
import msgspec
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.embedders import Hashing
from benchmarks.recall_contexts import (
    BUDGETS,
    LINE_TOKENS,
    fill_contexts,
    interval,
    judged_contexts,
    show_contexts,
    show_unanswerable,
)
from benchmarks.recall_data import Answer, Place, Question, Rows, read_questions, read_unanswerable
from benchmarks.recall_facts import GivenFacts, place_of
from benchmarks.recall_plots import draw_plots, missing
from benchmarks.recall_readers import is_published, read_published
from benchmarks.reference import Reference
from benchmarks.speed.bars import read_bars
from benchmarks.synthetic.__main__ import CHATS, DAILY, DESK
from benchmarks.synthetic.chats import to_jsonl
from remora import Config, Runtime
from remora.cli.replay import Conversations, percentile, read_conversations, replay
from remora.models.extractive import ExtractiveSummarizer
from remora.models.ports import Embedder, as_embedder, embed_texts
from remora.models.static import WordLlamaEmbedder
from remora.tokens import HeuristicCounter

EXIT_SKIPPED = 77
DEPTHS = (1, 5, 10, 20)


def make_embedder(name: str) -> Embedder | None:
    """The embedder that the command line names."""
    if name == "none":
        return None
    if name == "wordllama":
        return WordLlamaEmbedder()
    if name == "minilm":
        minilm = importlib.import_module("remora.models.minilm")  # of an extra
        return cast("Embedder", minilm.MiniLMEmbedder())
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
    unanswerable: Sequence[Question],
    embedder: Embedder | None,
    bar: Progress,
    facts: GivenFacts | None,
) -> tuple[list[Answer], dict[int, list[Answer]]]:
    """Replay everything, and ask every question by `recall`, and by `load` with each budget.

    Questions without an answer are asked by `load` only.
    """
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
        task = bar.add_task("asking remora", total=len(questions) + len(unanswerable))
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
            await load(runtime, question, loaded)
            bar.advance(task)
        for question in unanswerable:
            await load(runtime, question, loaded)
            bar.advance(task)
    return recalled, loaded


async def load(runtime: Runtime, question: Question, loaded: dict[int, list[Answer]]) -> None:
    """Ask by `load` with each budget, in a new session."""
    session = runtime.user(question.user).session("the-question")
    for budget, answers in loaded.items():
        begun = time.perf_counter()
        context = await session.load(query=question.text, max_tokens=budget)
        seconds = time.perf_counter() - begun
        places = [place_of(m, question.evidence) for m in context.memories]
        tokens = sum(m.tokens + LINE_TOKENS for m in context.memories)
        answers.append(Answer(places, seconds, tokens))


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


async def measure(
    directory: Path,
    conversations: Conversations,
    questions: Sequence[Question],
    unanswerable: Sequence[Question],
    embedder: Embedder | None,
    bar: Progress,
    facts: GivenFacts | None,
) -> dict[str, Any]:
    recalled, loaded = await ask_remora(
        directory, conversations, questions, unanswerable, embedder, bar, facts
    )
    rows, answers = await ask_lancedb(directory, conversations.users, questions, embedder, bar)
    answers = {"remora": recalled, **answers, **await ask_reference(rows, questions, embedder, bar)}
    contexts = {"remora": loaded, **fill_contexts(rows, [*questions, *unanswerable], bar)}
    count = len(questions)
    return {
        "methods": {name: judged(questions, found) for name, found in answers.items()},
        "contexts": {
            name: {
                budget: judged_contexts(questions, found[:count]) for budget, found in sizes.items()
            }
            for name, sizes in contexts.items()
        },
        "unanswerable": {
            name: {
                budget: float(np.mean([answer.tokens for answer in found[count:]]))
                for budget, found in sizes.items()
            }
            for name, sizes in contexts.items()
            if unanswerable
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
    if figures["unanswerable"]:
        show_unanswerable(figures["unanswerable"], figures["unanswerable_questions"])
    in_memory = [one for name, one in figures["methods"].items() if name.endswith("in memory")]
    best = {key: max(one["all"][key] for one in in_memory) for key in ("recall@5", "recall@10")}
    print(
        "against the best recipe in memory: "
        + ", ".join(f"{key} {remora['all'][key] - value:+.3f}" for key, value in best.items())
    )


def spread(questions: list[Question], limit: int) -> list[Question]:
    """At most so many of the questions, from all over the file."""
    count = min(limit, len(questions))
    return [questions[n * len(questions) // count] for n in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        default=[CHATS, DESK, DAILY],
        metavar="FILE",
        help="conversations and questions, JSONL (default: those of benchmarks.synthetic)",
    )
    parser.add_argument(
        "--embedder",
        default=Config.from_environment().models.embedder,
        help="wordllama, minilm, none, hash, or module:name of an embedder or its class (default: "
        "REMORA_MODELS__EMBEDDER, or %(default)s)",
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
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 if a bar of benchmarks/bars.toml is missed",
    )
    parser.add_argument(
        "--plots",
        type=Path,
        metavar="DIR",
        help="measure nothing; draw the pictures of docs/evidence/recall.md (SVG; needs "
        "remora[plots])",
    )
    options = parser.parse_args()
    if options.plots:
        if hint := missing():
            parser.error(hint)
        draw_plots(options.plots)
        return
    # each load is told of a summarizer that it does not use
    logging.getLogger("remora").setLevel(logging.ERROR)
    every = [found for path in options.data if (found := measure_set(path, options)) is not None]
    if not every:
        raise SystemExit(EXIT_SKIPPED)
    if options.json:
        options.json.write_text(json.dumps(every[0] if len(every) == 1 else every, indent=2) + "\n")
    if options.check and find_missed(every):
        raise SystemExit(1)


def measure_set(path: Path, options: argparse.Namespace) -> dict[str, Any] | None:
    """Measure one set, and print its figures; None if it is skipped."""
    if not path.exists():
        print(
            f"skipped: there is no file {path}; docs/reference/replay-format.md says what it holds",
            file=sys.stderr,
        )
        return None
    if is_published(path):
        with tempfile.TemporaryDirectory() as folder:
            rows = Path(folder, path.with_suffix(".jsonl").name)
            rows.write_text(to_jsonl(read_published(path)), encoding="utf-8")
            return measure_set(rows, options)
    conversations = read_conversations(path)
    questions = read_questions(path, conversations)
    unanswerable = read_unanswerable(path, conversations)
    if options.limit and options.limit < len(questions):
        questions = spread(questions, options.limit)
        unanswerable = spread(unanswerable, options.limit)
    if not questions:
        print(f"skipped: {path} has no questions with evidence", file=sys.stderr)
        return None
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
            measure,
            Path(temporary),
            conversations,
            questions,
            unanswerable,
            embedder,
            bar,
            facts,
        )
    figures = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python "
        f"{platform.python_version()}",
        "data": path.name,
        "embedder": embedder.name if embedder else "none",
        "questions": len(questions),
        "unanswerable_questions": len(unanswerable),
        **figures,
    }
    show(figures)
    return figures


def find_missed(every: Sequence[dict[str, Any]]) -> list[str]:
    """Print which bars the sets meet; returns those that are missed."""
    missed = []
    for figures in every:
        for bar in read_bars().get("recalled", ()):
            if bar.case == figures["data"]:
                reached = figures["methods"][bar.contestant]["all"][bar.figure]
                met = reached >= (bar.least or 0.0)
                print(f"{bar.case}: {bar.text}: {reached:.3f}, {'met' if met else 'MISSED'}")
                missed += [] if met else [bar.text]
    return missed


if __name__ == "__main__":
    main()
