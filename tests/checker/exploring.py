"""Seeds: each a program of calls, a runtime's settings, faults and power cuts.

Played, checked, and made small where it fails.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from unittest.mock import patch

import anyio
import anyio.abc
import msgspec

from remora import BufferPolicy, Runtime
from remora.config import Config
from remora.errors import InvalidInput
from remora.services import intake
from remora.testing.simulation import CONFIG, Deadlock, Fault, Stuck, World
from remora.testing.simulation.world import KINDS
from remora.tokens import HeuristicCounter
from tests.checker.history import History, Violation
from tests.checker.judging import check, check_arrival, check_sound
from tests.checker.players import Player
from tests.checker.programs import draw_program
from tests.checker.rest import check_at_rest, check_watermark
from tests.checker.shrinking import Case, Shrunk, counterexample, shrink

__all__ = [
    "Run",
    "Settings",
    "case_of",
    "counted_in_thread",
    "draw_case",
    "draw_settings",
    "play",
    "read_case",
    "report",
    "smallest",
    "written",
]

_POLICIES: Sequence[BufferPolicy] = (
    BufferPolicy(above_tokens=60, keep_tokens=30, overdraft_tokens=300),
    BufferPolicy(above_tokens=40, keep_tokens=10, overdraft_tokens=80),
    BufferPolicy(above_messages=6, keep_messages=3),
    BufferPolicy(above_messages=6, batch=4, fold="entry", entries=1),
    BufferPolicy.window(5),
)
_TIGHT: Sequence[tuple[str, dict[str, Sequence[Any]]]] = (
    ("mailbox", {"max_messages": (1, 2), "when_full": ("refuse", "wait")}),
    ("mailbox", {"max_bytes": (200, 1_000), "when_full": ("refuse", "wait")}),
    ("activation", {"max_live": (1, 2)}),
    ("activation", {"max_bytes": (2_000, 8_000)}),
    ("supervisor", {"breaker_failures": (1, 2)}),
    ("supervisor", {"max_attempts": (1, 2)}),
    ("supervisor", {"summarize_concurrency": (1,), "flush_concurrency": (1,)}),
    ("journal", {"max_batch_writes": (1, 2)}),
    ("recall", {"hot_rows": (1, 3)}),
    ("working", {"max_memory_mb": (0.0002,), "fifo_interval_min": (0.01,)}),
    ("synopsis", {"identity_ttl": (0.5,), "context_ttl": (0.5,)}),
)
"""What hardly leaves any room; each in this share of the seeds:"""
_TIGHT_SHARE = 0.2
_SMALL_SHARE = 0.3  # of the seeds have small summaries, in which not every message has room
_SMALL_TOKENS = (15, 25, 40, 120)
_EXTRACTS_SHARE = 0.3  # of these have no model
_CLOSES_S = (0.01, 0.1, 0.5, 3.0)
_PATIENCE = 3.0  # so many times as long as sessions stay in memory idle
_LONG_IDLE_S = 10.0  # waiting for those takes more steps than all the rest
_ANSWER_S = 0.5  # the journal's latencies and the schedule's pauses; models take longer


class Settings(msgspec.Struct, frozen=True):
    """How the runtime of a case is configured.

    Attributes:
        policy: what its sessions keep.
        config: everything else: how large mailboxes are, and what they do when full; how many
            actors may live, and how long.
        extracts: there is no model: summaries are extracts.
        counted_from: so many appends on their way have further ones counted in a thread; None if
            none ever is.
    """

    policy: BufferPolicy
    config: Config
    extracts: bool = False
    counted_from: int | None = None

    @property
    def roomy(self) -> bool:
        """A summary has room for the names of all messages."""
        return not self.extracts and self.config.buffer == CONFIG.buffer


class Run(msgspec.Struct, frozen=True):
    """What became of a case.

    Attributes:
        case: the case.
        history: what its callers saw.
        violations: of guarantees.
        fingerprints: of each life.
        steps: of the event loop, over all lives.
        choices: at how many of them there was one.
    """

    case: Case
    history: History
    violations: list[Violation]
    fingerprints: tuple[int, ...]
    steps: int
    choices: int


def draw_case(seed: int, *, size: int = 12) -> Case:
    """The case of a seed: about `size` calls."""
    rng = random.Random(f"{seed}/case")
    return case_of(rng, seed, rng.randint(size // 2, size + size // 2))


def case_of(rng: random.Random, seed: int, size: int) -> Case:
    """A case of so many calls by chance; faults and power cuts in about half of all cases."""
    program = draw_program(rng, size=size, callers=rng.choice([2, 4, 8]))
    faults = [_draw_fault(rng) for _ in range(rng.choice([0, 0, 1, 1, 2, 4]))]
    # from the first steps on, in which what the life before left is found: a start may be cut as
    # well
    crashes = tuple(
        int(4 * 1.5 ** rng.uniform(0, 14.5)) for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 3]))
    )
    closes = tuple(rng.choice(_CLOSES_S) for _ in range(rng.choice([0, 0, 0, 0, 0, 0, 0, 0, 1, 2])))
    return Case(program, seed, tuple(faults), crashes, closes)


def _draw_fault(rng: random.Random) -> Fault:
    port = rng.choice(
        ["commit", "commit", "commit", "read", "store", "store", "summarizer", "embedder"]
    )
    kind = rng.choice(KINDS[port])
    often = [1, 1, 1, 2, 8] if port in {"commit", "read"} else [1, 1, 2, 8, 30]
    if kind in {
        "hang",
        "late",
    }:  # each takes minutes of virtual time, and nothing happens meanwhile
        often = [1]
    return Fault(port, int(1.6 ** rng.uniform(0, 7)) - 1, kind, rng.choice(often))


def draw_settings(seed: int) -> Settings:
    """How the runtime of a seed is configured: mostly as usual, sometimes with hardly any room."""
    rng = random.Random(f"{seed}/settings")
    config = changed(CONFIG, "activation", idle_s=rng.choice([1.0, 3.0, 60.0]))
    for section, values in _TIGHT:
        if rng.random() < _TIGHT_SHARE:
            config = changed(
                config, section, **{name: rng.choice(some) for name, some in values.items()}
            )
    settings = Settings(rng.choice(_POLICIES), config)
    threads = random.Random(f"{seed}/counting")  # of its own: all else is drawn as without it
    settings = msgspec.structs.replace(settings, counted_from=threads.choice((None, 0, 1)))
    small = random.Random(f"{seed}/summaries")
    if small.random() >= _SMALL_SHARE:
        return settings
    config = changed(config, "buffer", summary_tokens=small.choice(_SMALL_TOKENS))
    config = changed(config, "supervisor", resummarize_interval_s=small.choice((0.5, 30.0)))
    extracts = small.random() < _EXTRACTS_SHARE
    if extracts:
        config = changed(config, "synopsis", shown="always")
    return msgspec.structs.replace(settings, config=config, extracts=extracts)


def changed(config: Config, section: str, **values: Any) -> Config:
    """The configuration with other values in one of its sections."""
    return msgspec.structs.replace(
        config, **{section: msgspec.structs.replace(getattr(config, section), **values)}
    )


def play(
    case: Case,
    *,
    settings: Settings | None = None,
    rng: random.Random | None = None,
    journal: Literal["memory", "sqlite"] = "memory",
    long_term: Literal["memory", "lance"] = "memory",
    **options: Any,
) -> Run:
    """Play a case to its end, through its power cuts, and check everything (G1 to G9, G11, G12).

    Args:
        case: what is played.
        settings: instead of those that its seed draws.
        rng: draws the schedule instead of the seed.
        journal: see `World`.
        long_term: see `World`.
        options: see `World`.
    """
    settings = settings or draw_settings(case.seed)
    world = World(
        case.seed,
        rng=rng,
        plan=case.faults,
        cuts=case.crashes,
        journal=journal,
        long_term=long_term,
        **options,
    )
    history = History()
    player = Player(case.program, history, random.Random(f"{case.seed}/callers"))
    found: list[Violation] = []
    at_rest: list[Violation] = []
    journal_sound = all(fault.port not in {"commit", "read"} for fault in case.faults)
    idle_s = settings.config.activation.idle_s
    patience_s = (
        _PATIENCE * idle_s if journal_sound and idle_s < _LONG_IDLE_S and case.seed % 2 else 0.0
    )

    closes = list(case.closes)
    options_of_runtime: dict[str, Any] = {"config": settings.config, "policy": settings.policy}
    if settings.extracts:
        options_of_runtime["summarizer"] = None

    async def checked(world: World) -> None:
        if (kept := world.kept) is not None:
            found.extend(await check_watermark(*kept))

    async def until(close_s: float, runtime: Runtime, tasks: anyio.abc.TaskGroup) -> None:
        played = anyio.Event()

        async def playing() -> None:
            await player.play(runtime)
            played.set()

        tasks.start_soon(playing)
        with anyio.move_on_after(close_s):
            await played.wait()

    async def life(world: World) -> None:
        if world.life:
            await checked(world)
        while closes:
            async with (
                anyio.create_task_group() as tasks,  # its callers outlive the runtime
                world.runtime(**options_of_runtime) as runtime,
            ):
                await until(closes.pop(0), runtime, tasks)
            await checked(world)
        async with world.runtime(**options_of_runtime) as runtime:
            await player.play(runtime)
            world.calm()
            at_rest[:] = await check_at_rest(runtime, history, patience_s=patience_s)

    try:
        with counted_in_thread(settings.counted_from):
            world.run(life, on_cut=history.crashed)
    except (Deadlock, Stuck) as e:
        found.append(Violation("G11", type(e).__name__, str(e)))
    else:
        found += at_rest
        found += check(
            history,
            policy=settings.policy,
            sound_models=settings.roomy
            and all(one.port not in {"summarizer", "read"} for one in case.faults),
            honest_models=all(
                (one.port, one.kind) != ("summarizer", "garbage") for one in case.faults
            ),
        )
        found += check_arrival(history)
        if journal_sound:
            found += check_sound(history, _ANSWER_S)
    if world.doubled:
        found.append(
            Violation(
                "G7",
                "long-term memory",
                f"added as surely new, though they were there: {', '.join(world.doubled)}",
            )
        )
    if world.foreign:
        found.append(
            Violation(
                "G1", "the event loop", "a thread of its own called: this run cannot be repeated"
            )
        )
    return Run(case, history, found, tuple(world.fingerprints), world.steps, world.choices)


@contextmanager
def counted_in_thread(appends: int | None) -> Iterator[None]:
    """With so many appends on their way, further ones are counted in a (simulated) thread.

    By the heuristic counter, which needs no tables.
    """
    if appends is None:
        yield
        return
    with (
        patch.object(
            HeuristicCounter,
            "count_all",
            lambda self, texts: [self.count(text) for text in texts],
            create=True,
        ),
        patch.multiple(intake, _FEW=appends, _FEW_LONG=appends),
    ):
        yield


def written(case: Case) -> str:
    """A case as one line of JSON, which `read_case` takes.

    To be kept as a regression test, or played again by hand.
    """
    return msgspec.json.encode(case).decode()


def report(run: Run) -> str:
    """What a person needs to understand a run, and how to play it again."""
    again = f"again: python -m tests.checker --case '{written(run.case)}'"
    return f"{counterexample(run.case, run.history, run.violations)}\n{again}"


def read_case(text: str) -> Case:
    """The case that `written` wrote.

    Raises:
        InvalidInput: it is none.
    """
    try:
        case = msgspec.json.decode(text, type=Case)
        return msgspec.structs.replace(
            case, faults=tuple(msgspec.convert(fault, Fault) for fault in case.faults)
        )
    except msgspec.MsgspecError as e:
        raise InvalidInput(f"that is no case of the simulation: {e}") from e


def smallest(run: Run, *, tries: int = 600, **options: Any) -> tuple[Run, Shrunk]:
    """The smallest case to be found that breaks one of the guarantees which this one breaks, and
    how it was found.

    Args:
        run: has violations.
        tries: cases played at most.
        options: those that it was played with.
    """
    settings = options.pop("settings", None) or draw_settings(run.case.seed)
    broken = {violation.guarantee for violation in run.violations}
    runs = {run.case: run}

    def fails(case: Case) -> bool:
        runs[case] = play(case, settings=settings, **options)
        return any(violation.guarantee in broken for violation in runs[case].violations)

    shrunk = shrink(run.case, fails, tries=tries)
    return runs[shrunk.case], shrunk
