"""What the contexts of an agent still hold: facts, tokens, and the prefix that a provider caches.

    python -m benchmarks.contexts [--runs 12] [--calls 200] [--budgets 2000 4000 8000 30000 100000]
        [--seed 1] [--every 2] [--json FILE] [--smoke]

Each run is an agent's conversation that is made up: turns of a user, loops of tool calls whose
results have 0.1 to 200 kB, a picture, a refusal, an answer with reasoning. A fact is a code that
stands once in the run: in each message of a user, in each answer of the assistant, and at a random
place in each result. Before every second answer of the model (`--every`), and at the end, each
contestant gives a context for each budget. At the end:

  whole      facts in a message that is shown as it is.
  excerpt    facts in a message that is shown in part.
  summary    facts in a summary.
  lost       facts that are not in the context at all.
  tokens     of the last context, by the heuristic counter (characters by four).
  prefix     share of the characters of all contexts that the context before began with, message by
             message.

Contestants:

  remora     the default install, without long-term memory: its contexts alone are measured.
  trim       what `trim_messages` of langchain-core does with strategy ``last``,
             ``start_on="human"`` and ``include_system``; a test compares both.
  clear      Anthropic's clearing of tool uses as documented: above the budget, all but the last
             three results are replaced by a placeholder; what is then too long is trimmed as `trim`
             does it.
  langchain  `SummarizationMiddleware` of langchain, before each answer of the model: above the
             budget it summarizes all but the newest half of it.
  openai     `OpenAIResponsesCompactionSession` of openai-agents, at the end of each turn that is
             above the budget: it keeps what users said, and has an item for the rest.

The last two summarize by remora's own extract, of a quarter of the budget, and need the packages
langchain and openai-agents. Neither cuts what stays above the budget: see `tokens`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import statistics
import string
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import remora
from benchmarks.context_peers import LangChainSummaries, OpenAICompaction
from remora.errors import BudgetTooSmall
from remora.tokens import HeuristicCounter, count_message

COUNTER = HeuristicCounter()
KINDS = ("user", "assistant", "tool")
PLACEHOLDER = "[tool result cleared]"
WORDS = "order flight seat price refund gate bag city hotel card date time row note".split()  # noqa: SIM905
PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 40
Shown = Callable[[int], Awaitable[tuple[list[Any], str]]]


class Run:
    """One conversation, message by message, and the facts that it plants."""

    def __init__(self, seed: int, calls: int) -> None:
        self._rng = random.Random(seed)
        self.facts: dict[str, str] = {}
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent."}]
        while calls > 0:
            loop = min(self._rng.randint(1, 12), calls)
            self._turn(loop)
            calls -= loop

    def _fact(self, role: str) -> str:
        code = "".join(self._rng.choices(string.ascii_uppercase + string.digits, k=8))
        self.facts[code] = role
        return code

    def _text(self, characters: int) -> str:
        return " ".join(self._rng.choices(WORDS, k=max(characters // 5, 1)))

    def _turn(self, calls: int) -> None:
        rng = self._rng
        wish = f"Please {self._text(60)} for {self._fact('user')}, {self._text(40)}."
        content: Any = wish
        if rng.random() < 0.1:
            picture = {"type": "image_url", "image_url": {"url": PICTURE}}
            content = [{"type": "text", "text": wish}, picture]
        self.messages.append({"role": "user", "content": content})
        for _ in range(calls):
            id_ = f"call_{len(self.messages)}"
            arguments = json.dumps({"query": self._text(20)})
            function = {"name": "look_up", "arguments": arguments}
            call = {"id": id_, "type": "function", "function": function}
            made = {"role": "assistant", "content": None, "tool_calls": [call]}
            if rng.random() < 0.3:
                made["reasoning_content"] = self._text(400)
            self.messages.append(made)
            size = int(100 * 2_000 ** rng.random())
            before = rng.randrange(size)
            result = f"{self._text(before)} {self._fact('tool')} {self._text(size - before)}"
            self.messages.append({"role": "tool", "tool_call_id": id_, "content": result})
        if rng.random() < 0.05:
            self.messages.append({"role": "assistant", "content": None, "refusal": "I cannot."})
            return
        text = f"I found {self._fact('assistant')}. {self._text(120)}."
        self.messages.append({"role": "assistant", "content": text})


# -- contestants -----------------------------------------------------------------------------------


async def play_remora(run: Run, look: Callable[[int, Shown], Awaitable[None]]) -> None:
    """Append message by message, and load."""
    config = remora.Config.from_dict(
        {"long_term": {"enabled": False}, "tokens": {"counter": "heuristic"}}
    )
    async with remora.Runtime.in_memory(config=config) as runtime:
        chat = runtime.session("agent", "run")

        async def show(budget: int) -> tuple[list[Any], str]:
            try:
                context = await chat.load(max_tokens=budget)
            except BudgetTooSmall:
                return [], ""
            return list(context.messages), context.summary or ""

        for place, message in enumerate(run.messages):
            await chat.append(message)
            await look(place, show)
            await chat.settle()


async def play_messages(
    run: Run,
    look: Callable[[int, Shown], Awaitable[None]],
    select: Callable[[Sequence[dict[str, Any]], int], list[dict[str, Any]]],
) -> None:
    """Hold a list of messages, of which `select` takes what fits."""
    sizes = [count_message(COUNTER, one) for one in run.messages]
    for place in range(len(run.messages)):
        known = [{**m, "_tokens": n} for m, n in zip(run.messages, sizes, strict=True)][: place + 1]

        async def show(budget: int, known: list[dict[str, Any]] = known) -> tuple[list[Any], str]:
            chosen = select(known, budget)
            return [{k: v for k, v in one.items() if k != "_tokens"} for one in chosen], ""

        await look(place, show)


async def play_peer(
    run: Run,
    look: Callable[[int, Shown], Awaitable[None]],
    make: Callable[[int], LangChainSummaries | OpenAICompaction],
    budgets: Sequence[int],
) -> None:
    """Add message by message to a contestant for each budget, and have it shown."""
    peers = {budget: make(budget) for budget in budgets}
    for place, message in enumerate(run.messages):
        for peer in peers.values():
            await peer.add(message)
        await look(place, lambda budget: peers[budget].show())
    for peer in peers.values():
        if isinstance(peer, OpenAICompaction):
            peer.close()


def trim(messages: Sequence[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    """As langchain-core's `trim_messages` with ``strategy="last"``: `tests` compare both."""
    system, rest = messages[0], messages[1:]
    left, start = budget - system["_tokens"], len(rest)
    while start and rest[start - 1]["_tokens"] <= left:
        start -= 1
        left -= rest[start]["_tokens"]
    while start < len(rest) and rest[start]["role"] != "user":
        start += 1
    return [system, *rest[start:]]


def clear(messages: Sequence[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    """Clear all but the last three results, if the messages are too long."""
    if sum(one["_tokens"] for one in messages) <= budget:
        return list(messages)
    results = [n for n, one in enumerate(messages) if one["role"] == "tool"][:-3]
    cleared = list(messages)
    for place in results:
        shorter = {**cleared[place], "content": PLACEHOLDER}
        cleared[place] = {**shorter, "_tokens": 12}
    return trim(cleared, budget)


# -- measuring -------------------------------------------------------------------------------------


class Figures:
    """What the contexts of one contestant hold within one budget, over all runs."""

    def __init__(self) -> None:
        self.found = {
            kind: dict.fromkeys(("whole", "excerpt", "summary", "lost"), 0) for kind in KINDS
        }
        self.tokens: list[int] = []
        self.kept = self.all = 0
        self._before: list[str] = []

    def begin(self) -> None:
        """Another run: there is no context before."""
        self._before = []

    def see(self, messages: Sequence[Any]) -> None:
        """One context of a run."""
        now = [json.dumps(one, ensure_ascii=False) for one in messages]
        if self._before:
            same = 0
            for one, other in zip(self._before, now, strict=False):
                if one != other:
                    break
                same += len(one)
            self.kept += same
            self.all += sum(map(len, now))
        self._before = now

    def end(self, run: Run, messages: Sequence[Any], summary: str) -> None:
        """The last context of a run."""
        whole = {json.dumps(one) for one in run.messages}
        said: list[str] = []
        cut: list[str] = []
        for one in messages:
            text = json.dumps(one)
            (said if text in whole else cut).append(text)
        shown, parts = "\n".join(said), "\n".join(cut)
        for code, kind in run.facts.items():
            place = "lost"
            if code in shown:
                place = "whole"
            elif code in summary:
                place = "summary"
            elif code in parts:
                place = "excerpt"
            self.found[kind][place] += 1
        self.tokens.append(sum(count_message(COUNTER, one) for one in messages))

    def report(self) -> dict[str, Any]:
        """The figures, as shares."""
        shares = {
            kind: {place: n / max(sum(found.values()), 1) for place, n in found.items()}
            for kind, found in self.found.items()
        }
        prefix = self.kept / self.all if self.all else 1.0
        return {"facts": shares, "tokens": statistics.mean(self.tokens), "prefix": prefix}


async def measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """All contestants over the same runs."""
    runs = [Run(arguments.seed * 1_000 + n, arguments.calls) for n in range(arguments.runs)]
    contestants: dict[str, Callable[[Run, Any], Awaitable[None]]] = {
        "remora": play_remora,
        "trim": lambda run, look: play_messages(run, look, trim),
        "clear": lambda run, look: play_messages(run, look, clear),
    }
    peers: dict[str, tuple[str, Any]] = {
        "langchain": ("langchain", LangChainSummaries),
        "openai": ("agents", OpenAICompaction),
    }
    for name, (package, make) in peers.items():
        if find_spec(package) is None:
            console.print(f"[yellow]{name} is left out: the package {package} is not installed")
            continue
        contestants[name] = partial(play_peer, make=make, budgets=arguments.budgets)
    report: dict[str, Any] = {}
    with Progress(console=console, transient=True) as progress:
        for name, play in contestants.items():
            task = progress.add_task(name, total=len(runs))
            figures = {budget: Figures() for budget in arguments.budgets}
            for run in runs:
                for one in figures.values():
                    one.begin()

                # a model is asked after a user or a tool has spoken
                asked = [n for n, one in enumerate(run.messages) if one["role"] != "assistant"]
                places = {*asked[:: arguments.every], len(run.messages) - 1}

                async def look(
                    place: int,
                    show: Shown,
                    run: Run = run,
                    figures: dict[int, Figures] = figures,
                    places: set[int] = places,
                ) -> None:
                    if place not in places:
                        return
                    for budget, one in figures.items():
                        messages, summary = await show(budget)
                        one.see(messages)
                        if place == len(run.messages) - 1:
                            one.end(run, messages, summary)

                await play(run, look)
                progress.advance(task)
            report[name] = {budget: one.report() for budget, one in figures.items()}
    return report


def print_report(report: dict[str, Any], console: Console) -> None:
    """A table for each kind of fact."""
    table = Table(title="facts in the last context: whole / excerpt / summary / lost")
    for column in ("budget", "contestant", *KINDS, "tokens", "prefix"):
        table.add_column(column, justify="left" if column == "contestant" else "right")
    for budget in next(iter(report.values())):
        for name, figures in report.items():
            one = figures[budget]
            shares = [
                " / ".join(f"{share:.2f}" for share in one["facts"][kind].values())
                for kind in KINDS
            ]
            table.add_row(
                f"{budget:,}", name, *shares, f"{one['tokens']:,.0f}", f"{one['prefix']:.2f}"
            )
    console.print(table)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.contexts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=12, help="conversations (12)")
    parser.add_argument("--calls", type=int, default=200, help="tool calls in each (200)")
    parser.add_argument(
        "--budgets", type=int, nargs="+", default=[2_000, 4_000, 8_000, 30_000, 100_000]
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=2, help="load before so many answers (2)")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--smoke", action="store_true", help="one short run, for tests")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.runs, arguments.calls, arguments.budgets = 1, 12, [2_000, 8_000]
    logging.disable(logging.WARNING)
    console = Console()
    report = asyncio.run(measure(arguments, console))
    print_report(report, console)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
