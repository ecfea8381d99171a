"""``remora tune``."""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
from rich.console import Console
from rich.table import Table

from remora.api.base import BaseRuntime
from remora.cli import Commands
from remora.cli.memory import open_to_read, runtime_of
from remora.cli.render import print_json
from remora.cli.transfer import progress_bar
from remora.errors import InvalidInput
from remora.ids import memory_of_row
from remora.messages.text import counted
from remora.recall.memory import comparable_text
from remora.recall.tuning import LabelledQuestion, TuningReport, fit_weights, prepare_questions
from remora.runtime.threads import run_in_thread
from remora.storage.ports import BLOCK_TYPE, MemoryRow

_FEWEST = 10  # questions, of which a fit says anything
_NAMED = 5  # lines that an error names
_DESCRIPTION = """\
Fit the weights of recall to questions whose answers are known, and print the
section of the configuration that has them. Nothing else is changed: put the
section into your configuration if the figures are worth it. A server may own
the directory.

LABELS is a file of JSON lines, one question each:

  {"user": "alice", "query": "Where do I live?", "relevant": ["I moved to Lisbon."]}

relevant lists every memory that answers the question: its whole text, its id
as recall returns it, or {"session": "chat-1", "seq": 12}. Write questions as
your users ask them, or log which recalled memories they used.

The questions are split by user: the figures are of users whose questions the
weights were not fitted to, with the weights in force (now) and fitted ones.
The printed weights are then fitted to all questions. A hundred questions of
five users are a beginning; docs/how-to/tuning-recall.md says more.
"""
_VERDICTS = {
    "better": "The fitted weights are better on users that they were not fitted to.",
    "no better": "The weights in force are as good: keep them.",
    "unclear": "The gain may be chance: keep the weights in force, or label more questions.",
}


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session: str
    seq: int


_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Label(msgspec.Struct, frozen=True):
    user: _Text
    query: _Text
    relevant: Annotated[list[_Text | _Place], msgspec.Meta(min_length=1)]


def add_tune_parser(
    commands: Commands, common: argparse.ArgumentParser, printing: argparse.ArgumentParser
) -> None:
    """Describe the command to the parser.

    Args:
        commands: the parser of commands.
        common: options of all commands.
        printing: options of commands that print results.
    """
    command = commands.add_parser(
        "tune",
        parents=[common, printing],
        help="fit recall's weights to questions with known answers",
        description=_DESCRIPTION,
        epilog="examples:\n  remora tune questions.jsonl --dir memory\n"
        "  remora tune questions.jsonl --dir memory --output recall.toml\n"
        "  remora config --config recall.toml      what is in force with it\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("labels", type=Path, metavar="LABELS.jsonl", help="labelled questions")
    command.add_argument(
        "--output",
        type=Path,
        metavar="FILE.toml",
        help="write the section there as well, if a weight changes",
    )
    command.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    command.add_argument(
        "--skip-missing",
        action="store_true",
        help="leave questions out whose memories are not there, and say how many they are",
    )


async def command_tune(console: Console, arguments: argparse.Namespace) -> int:
    """Fit the weights; returns the exit code."""
    output: Path | None = arguments.output
    if output is not None:
        if output.suffix != ".toml":
            raise InvalidInput(f"--output writes TOML: {output} must end in .toml")
        if await anyio.Path(output).exists() and not arguments.overwrite:
            raise InvalidInput(f"{output} exists: choose another name, or --overwrite")
    labels = await run_in_thread(read_labels, arguments.labels)
    async with open_to_read(arguments, long_term=True, copied=True) as runtime:
        questions, missing = await _prepare(runtime, labels)
        importance = runtime.config.importance.weight
    if missing and not arguments.skip_missing:
        raise InvalidInput(
            f"{_join(missing)}. Correct {arguments.labels}, or leave these questions out with "
            "--skip-missing"
        )
    if len(questions) < _FEWEST:
        raise InvalidInput(
            f"{counted(len(questions), 'question')} with known answers: fitting needs {_FEWEST} "
            "at least, and some hundred to be of use"
        )
    with progress_bar("fitting") as (_, advance):
        config = arguments.configured.recall
        report = fit_weights(questions, config, gain=1 + importance, progress=advance)
    section = _section(report, arguments.configured.recall)
    if output is not None and report.weights:
        await anyio.Path(output).write_text(section, encoding="utf-8")
    if arguments.json:
        print_json(
            {
                **msgspec.to_builtins(report),
                "verdict": report.verdict,
                "left_out": len(missing),
            }
        )
        return 0
    _print(console, report, left_out=len(missing))
    console.print(f"\n{section}", markup=False, highlight=False, end="", soft_wrap=True)
    if output is not None and not report.weights:
        console.print(f"{output} was not written: no weight changes", highlight=False, markup=False)
    return 0


def read_labels(path: Path) -> list[tuple[int, _Label]]:
    """The labelled questions of a file, each with its line, from 1.

    Raises:
        InvalidInput: there is no such file, or a line is no labelled question.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as e:
        raise InvalidInput(f"{path} cannot be read: {e.strerror or e}") from e
    labels, wrong = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            labels.append((number, msgspec.json.decode(line, type=_Label)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            wrong.append(f"line {number}: {e}")
    if wrong:
        raise InvalidInput(f"{path}: {_join(wrong)}; remora tune --help shows the format")
    if not labels:
        raise InvalidInput(f"{path} has no questions; remora tune --help shows the format")
    return labels


async def _prepare(
    memory: BaseRuntime, labels: Sequence[tuple[int, _Label]]
) -> tuple[list[LabelledQuestion], list[str]]:
    """Search for the questions; also says which cannot be used, and why."""
    config = memory.config.recall
    by_user: dict[str, list[tuple[int, _Label]]] = {}
    for number, label in labels:
        by_user.setdefault(label.user, []).append((number, label))
    questions: list[LabelledQuestion] = []
    missing: list[str] = []
    with progress_bar("searching") as (_, advance):
        for user, mine in by_user.items():
            recall = runtime_of(memory, user).internals.recall
            if recall is None:
                raise InvalidInput(
                    "long-term memory is off (long_term.enabled): there is no recall"
                )
            too_many = await recall.count(user) > config.hot_rows
            rows, vectors = ((), None) if too_many else await recall.searched_rows(user)
            said = [(one.session, one.seq) for one in rows if one.memory_type == "message"]
            journal = runtime_of(memory, user).internals.journal
            known = _rows_by_name(rows, await journal.message_ids(user, said))
            usable = []
            for number, label in mine:
                found = [known.get(_name(one), ()) for one in label.relevant]
                if all(found):
                    usable.append((label.query, found))
                elif too_many:
                    missing.append(
                        f"line {number}: {user!r} has more memories than recall.hot_rows"
                    )
                else:
                    missing.append(f"line {number}: {_describe_missing(label, known)}")
            if usable:
                questions += await prepare_questions(
                    user, rows, vectors, usable, config, recall.ask
                )
            advance(len(questions) + len(missing), len(labels))
    return questions, missing


def _rows_by_name(
    rows: Sequence[MemoryRow], ids: Mapping[tuple[str, int], str]
) -> dict[Hashable, set[str]]:
    """Ids of rows by all that a label may call them; `ids`: those of messages."""
    known: dict[Hashable, set[str]] = {}
    for row in rows:
        if row.memory_type != BLOCK_TYPE:
            text = comparable_text(row.content)
            place = (row.session, row.seq)
            said = comparable_text(ids.get(place, row.id))
            for name in (row.id, memory_of_row(row.id), said, text, place):
                known.setdefault(name, set()).add(row.id)
    return known


def _name(one: str | _Place) -> Hashable:
    return comparable_text(one) if isinstance(one, str) else (one.session, one.seq)


def _describe_missing(label: _Label, known: Mapping[Hashable, object]) -> str:
    if not known:
        return f"there is no user {label.user!r} with memories"
    one = next(one for one in label.relevant if _name(one) not in known)
    what = repr(one[:60]) if isinstance(one, str) else f"{one.session} #{one.seq}"
    return f"{label.user!r} has no memory {what}"


def _join(problems: Sequence[str]) -> str:
    more = len(problems) - _NAMED
    rest = f"; and {more} more" if more > 0 else ""
    return "; ".join(problems[:_NAMED]) + rest


def _section(report: TuningReport, before: object) -> str:
    """The section of the configuration, in TOML, with what it is worth."""
    lines = [f"# remora tune: {_measured(report)}"]
    lines += [f"# {name}: {_change(report, name)}" for name in report.gains if name != "both"]
    lines += [f"# {_VERDICTS[report.verdict]}", "[recall]"]
    if not report.weights:
        lines.append("# no weight changes")
    lines += [
        f"{name} = {value:g}  # now {getattr(before, name):g}"
        for name, value in report.weights.items()
    ]
    return "\n".join(lines) + "\n"


def _measured(report: TuningReport) -> str:
    questions = counted(report.questions, "question")
    users = counted(report.users, "user")
    unseen = "users" if report.by_user else "questions"
    return f"{questions} of {users}; figures of {unseen} that the weights were not fitted to"


def _change(report: TuningReport, name: str) -> str:
    one = report.gains[name]
    return (
        f"{one.before:.3f} now, {one.after:.3f} fitted, {one.after - one.before:+.3f} "
        f"(95 %: {one.low:+.3f} to {one.high:+.3f})"
    )


def _print(console: Console, report: TuningReport, *, left_out: int) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "now", "fitted", "difference", "95 %"):
        table.add_column(name, justify="left" if not name else "right")
    for name, one in report.gains.items():
        if name != "both":
            table.add_row(
                name,
                f"{one.before:.3f}",
                f"{one.after:.3f}",
                f"{one.after - one.before:+.3f}",
                f"{one.low:+.3f} to {one.high:+.3f}",
            )
    console.print(_measured(report), highlight=False)
    if left_out:
        console.print(f"left out: {counted(left_out, 'question')}", style="dim")
    console.print(table)
    console.print(_VERDICTS[report.verdict], highlight=False)
    if not report.by_user:
        console.print(
            "All questions are about one user: other users' may need other weights.", style="dim"
        )
