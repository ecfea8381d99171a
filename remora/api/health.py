"""The health of a memory, in the words of a probe: live, ready, degraded, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from remora.api.build import Internals
from remora.errors import OwnershipLost, OwnerUnreachable

Effect: TypeAlias = Literal["not live", "not ready", "degraded"]

_STUCK_S = 30.0
_JOBS_LATE_S = 600.0
TURN_LONG_S = 300.0
_LOG_HELD_S = 60.0
_FULL = 0.9
_MOST_NAMED = 3


class HealthProblem(msgspec.Struct, frozen=True):
    """Something that does not work as it should.

    Attributes:
        code: which one: for programs, and alarms; docs/how-to/health.md has them all.
        effect: what it does: ``not live``: only another start of the process helps; ``not ready``:
            requests fail now, or would take long; ``degraded``: requests are served, and something
            is missing.
        text: for people. It has no id of a user, and no text of a message.
    """

    code: str
    effect: Effect
    text: str


class Health(msgspec.Struct, frozen=True):
    """The health of a memory.

    Attributes:
        live: False if only another start of the process helps: what a liveness probe asks.
        ready: requests are served, at full speed: what a readiness probe asks.
        degraded: there are problems, whether or not requests are served.
        problems: what they are, the worst first.
    """

    live: bool
    ready: bool
    degraded: bool
    problems: tuple[HealthProblem, ...] = ()


def of_problems(problems: Sequence[HealthProblem]) -> Health:
    """The health of what has these problems."""
    effects = {one.effect for one in problems}
    live = "not live" not in effects
    ranked = sorted(problems, key=lambda one: _RANKS[one.effect])
    return Health(live, live and "not ready" not in effects, bool(problems), tuple(ranked))


_RANKS: dict[Effect, int] = {"not live": 0, "not ready": 1, "degraded": 2}


def merge_health(healths: Mapping[int, Health], part: str = "shard") -> Health:
    """The health of a memory whose parts have these: problems of the same kind are one.

    Args:
        healths: by number of the part.
        part: what it is.
    """
    if len(healths) == 1:
        return next(iter(healths.values()))
    found: dict[tuple[str, Effect], dict[int, str]] = {}
    for number, health in healths.items():
        for one in health.problems:
            found.setdefault((one.code, one.effect), {})[number] = one.text
    return of_problems(
        [
            HealthProblem(code, effect, _join(texts, len(healths), part))
            for (code, effect), texts in found.items()
        ]
    )


def _join(texts: dict[int, str], parts: int, part: str) -> str:
    different = dict.fromkeys(texts.values())
    if len(texts) == parts and len(different) == 1:
        return next(iter(different))
    named = [f"{part} {number}: {text}" for number, text in list(texts.items())[:_MOST_NAMED]]
    more = len(texts) - len(named)
    return "; ".join(named) + (f"; and {more} more {part}s" if more else "")


def find_problems(parts: Internals, stuck_s: float) -> Iterator[HealthProblem]:
    """The problems of an open runtime, by its figures, without I/O.

    Args:
        parts: of the runtime.
        stuck_s: how long the runtime's event loop has not run, as far as is known.
    """
    if stuck_s > _STUCK_S:
        yield HealthProblem(
            "stuck", "not live", f"the event loop has not run for {stuck_s:.0f} s: something blocks"
        )
    yield from _journal_problems(parts)
    yield from _long_term_problems(parts)
    yield from _job_problems(parts)
    if held := parts.turns.count_older(TURN_LONG_S):
        yield HealthProblem(
            "turns_held",
            "degraded",
            f"{held} turn{'s' if held > 1 else ''} began over {TURN_LONG_S / 60:.0f} minutes ago, "
            "and others of the same session wait, or have waited in vain: a model or a tool hangs, "
            "or a block was entered and not left",
        )
    waiting, limit = parts.registry.statistics().waiting_bytes, parts.config.mailbox.max_total_bytes
    if waiting > _FULL * limit:
        yield HealthProblem(
            "mailboxes_full",
            "degraded",
            f"{waiting} of {limit} bytes that may wait (mailbox.max_total_bytes): the disk is "
            "slower than what is sent",
        )


def _journal_problems(parts: Internals) -> Iterator[HealthProblem]:
    try:
        parts.journal.check_lease()
    except OwnerUnreachable as e:
        yield HealthProblem("lease_lapsed", "not ready", str(e))
    except OwnershipLost:  # the runtime ends, and says so
        pass
    log = parts.journal.statistics()
    if log.failing:
        yield HealthProblem(
            "commits_fail",
            "not ready" if log.refusing else "degraded",
            f"the last commit of the journal failed ({log.failing}): look at the disk",
        )
    if log.wal_held_s > _LOG_HELD_S:
        yield HealthProblem(
            "log_held",
            "degraded",
            f"a reader has kept the write-ahead log from being shortened for {log.wal_held_s:.0f} "
            f"s; it has {log.wal_bytes} bytes",
        )


def _long_term_problems(parts: Internals) -> Iterator[HealthProblem]:
    if parts.recall is None:
        return
    error = parts.warm_up.error
    if not parts.warm_up.ended:
        yield HealthProblem("loading", "not ready", "models and tables are being loaded")
    elif error is not None:
        yield HealthProblem(
            "not_loaded",
            "degraded",
            f"models or tables could not be loaded ({type(error).__name__}): recall fails; "
            "runtime.ready() tries again, and raises why",
        )
    if parts.recall.reranker_fails:
        did = parts.recall.rerank_statistics()
        yield HealthProblem(
            "reranker_fails",
            "degraded",
            f"the reranker failed several times in a row ({did.late} of {did.calls} calls were "
            "late): recall keeps the order in which it found. If it is late, raise "
            "recall.rerank_deadline_s or lower recall.rerank_depth",
        )
    rebuild = parts.index.reembedding
    if rebuild is not None and not rebuild.over:
        progress = rebuild.progress
        state = "stopped until the next start" if progress.error else "is being rebuilt"
        yield HealthProblem(
            "rebuilding",
            "degraded",
            f"long-term memory {state}: {progress.done} of {progress.total} messages; recall "
            "misses the others",
        )


def _job_problems(parts: Internals) -> Iterator[HealthProblem]:
    queues = parts.supervisor.statistics().queues
    dead = sum(one.dead for one in queues.values())
    if dead:
        yield HealthProblem(
            "dead_letters",
            "degraded",
            f"{dead} background job{'s' if dead > 1 else ''} failed too often, and "
            f"wait{'' if dead > 1 else 's'} for an operator: remora jobs says why",
        )
    late = [name for name, one in queues.items() if one.oldest_s > _JOBS_LATE_S]
    if late:
        oldest_s = max(queues[name].oldest_s for name in late)
        yield HealthProblem(
            "jobs_late",
            "degraded",
            f"background jobs are late ({', '.join(late)}): the oldest came {oldest_s:.0f} s ago",
        )
    if parts.breaker.failing:
        yield HealthProblem(
            "model_fails",
            "degraded",
            "the chat model failed several times in a row: summaries wait for it, and are "
            "fallbacks in the end",
        )
    delayed = parts.eraser.files.statistics().delayed
    if delayed:
        yield HealthProblem(
            "erasures_delayed",
            "degraded",
            f"{delayed} erasure{'s' if delayed > 1 else ''} failed, and will be tried again: "
            "something that was forgotten is still in a file",
        )
