"""The figures of a memory as text for Prometheus.

A server mounts it at ``/metrics``::

    async def metrics(request):
        return Response(remora.metrics.render(runtime), media_type=remora.metrics.CONTENT_TYPE)

No client library, no registry, no state: each call writes what `remora.Runtime.statistics` and
`remora.Runtime.health` say now. There is no id of a user and no text in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from remora.api.health import Health
from remora.api.status import RuntimeStatistics
from remora.errors import OwnershipLost, RuntimeClosed
from remora.faces import publish
from remora.runtime.meters import Histogram

if TYPE_CHECKING:
    from remora.api.base import BaseRuntime
    from remora.blocking import Runtime as BlockingRuntime

__all__ = ["CONTENT_TYPE", "exposition", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of the text: Prometheus' own format."""

_Labels: TypeAlias = Mapping[str, str]
_Sample: TypeAlias = tuple[_Labels, float | Histogram]
_Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
_Figures: TypeAlias = tuple[str, _Kind, str, Sequence[_Sample]]


class Family(NamedTuple):
    """Figures of one name; `samples` have labels and a value each."""

    name: str
    kind: _Kind
    text: str
    samples: Sequence[_Sample]


def render(runtime: BaseRuntime | BlockingRuntime) -> str:
    """Return what a runtime's figures are now, in Prometheus' text format.

    See docs/how-to/monitoring.md.

    Any thread may call it, and it does no I/O. Those of shards are added. In a worker that uses
    `remora.connect`, they are the owner's, so one worker's are everybody's.

    Args:
        runtime: a `remora.Runtime`, what `remora.connect` returned, or one of `remora.blocking`.
            One that is not open has its health alone.
    """
    statistics = None
    with suppress(RuntimeClosed, OwnershipLost):
        statistics = runtime.statistics()
    return exposition(statistics, runtime.health())


def exposition(statistics: RuntimeStatistics | None, health: Health) -> str:
    """These figures in Prometheus' text format, for instance of `remora.observe.ask`."""
    families = families_of(statistics, health)
    return "".join(line + "\n" for family in families for line in _lines(*family))


def families_of(statistics: RuntimeStatistics | None, health: Health) -> list[Family]:
    """All of these figures, by name; those of health alone without statistics."""
    found: list[_Figures] = [*_health(health)]
    if statistics is not None:
        for part in (_verbs, _registry, _log, _jobs, _upkeep, _recall):
            found += part(statistics)
    return [Family(*one) for one in found]


def _lines(name: str, kind: _Kind, text: str, samples: Iterable[_Sample]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        if isinstance(value, Histogram):
            yield from _histogram_lines(name, labels, value)
        else:
            yield f"{name}{_braces(labels)} {_number(value)}"


def _histogram_lines(name: str, labels: _Labels, value: Histogram) -> Iterator[str]:
    total = 0
    for bound, count in zip(value.bounds, value.counts, strict=False):
        total += count
        yield f"{name}_bucket{_braces({**labels, 'le': _number(bound)})} {total}"
    yield f"{name}_bucket{_braces({**labels, 'le': '+Inf'})} {value.count}"
    yield f"{name}_sum{_braces(labels)} {_number(value.sum)}"
    yield f"{name}_count{_braces(labels)} {value.count}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _braces(labels: _Labels) -> str:
    inside = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _one(value: float | Histogram) -> list[_Sample]:
    return [({}, value)]


# -- what there is ---------------------------------------------------------------------------------


def _health(health: Health) -> Iterator[_Figures]:
    yield "remora_live", "gauge", "0 if only another start of the process helps.", _one(health.live)
    yield "remora_ready", "gauge", "1 while requests are served.", _one(health.ready)
    problems = [({"code": one.code, "effect": one.effect}, 1.0) for one in health.problems]
    yield "remora_problem", "gauge", "1 for each problem that there is.", problems


def _verbs(of: RuntimeStatistics) -> Iterator[_Figures]:
    verbs = of.verbs
    yield (
        "remora_append_seconds",
        "histogram",
        "Appends, until they were durable.",
        _one(verbs.append_s),
    )
    loads = [({"query": "no"}, verbs.load_s), ({"query": "yes"}, verbs.query_s)]
    yield "remora_load_seconds", "histogram", "Contexts, without and with a query.", loads
    text = "Searches of long-term memory."
    yield "remora_recall_seconds", "histogram", text, _one(verbs.recall_s)
    sources = [
        ({"source": source, "status": status}, count)
        for source, counts in verbs.sources.items()
        for status, count in counts.items()
    ]
    text = "Contexts with a query, by what each source gave: ok, late, failed, for instance."
    yield "remora_context_sources_total", "counter", text, sources


def _registry(of: RuntimeStatistics) -> Iterator[_Figures]:
    registry = of.registry
    yield "remora_actors_live", "gauge", "Sessions and users in memory.", _one(registry.live)
    yield "remora_actors_bytes", "gauge", "Size of the actors in memory.", _one(registry.bytes)
    yield "remora_mailbox_messages", "gauge", "Requests that wait.", _one(registry.queued)
    text = "Bytes of requests that wait in a mailbox or for the journal."
    yield "remora_waiting_bytes", "gauge", text, _one(registry.waiting_bytes)
    text = "Actors that were read into memory."
    yield "remora_activations_total", "counter", text, _one(registry.activations)
    text = "Actors that left memory."
    yield "remora_passivations_total", "counter", text, _one(registry.passivations)
    paths = [({"path": "inline"}, registry.inline_messages)]
    paths.append(({"path": "queued"}, registry.queued_messages))
    yield "remora_messages_total", "counter", "Requests of actors that were handled.", paths
    text = "Requests that a full mailbox refused."
    yield "remora_refused_total", "counter", text, _one(registry.refused)
    text = "Requests whose deadline passed."
    yield "remora_expired_total", "counter", text, _one(registry.expired)
    text = "Actors that lost their state, and read it again."
    yield "remora_restarts_total", "counter", text, _one(registry.restarts)
    text = "Actors that failed again and again, and rested."
    yield "remora_quarantines_total", "counter", text, _one(registry.quarantines)


def _log(of: RuntimeStatistics) -> Iterator[_Figures]:
    log = of.log
    yield "remora_commits_total", "counter", "Group commits of the journal.", _one(log.commits)
    yield "remora_commits_failed_total", "counter", "Commits that failed.", _one(log.failed_commits)
    yield (
        "remora_writes_total",
        "counter",
        "Writes that were committed.",
        _one(log.writes),
    )
    yield "remora_records_total", "counter", "Records in these writes.", _one(log.records)
    yield "remora_log_backlog", "gauge", "Writes that wait for a commit.", _one(log.backlog)
    yield "remora_commit_seconds", "histogram", "Commits, with their sync.", _one(log.commit_s)
    yield "remora_commit_writes", "histogram", "Writes in each commit.", _one(log.batch_writes)
    text = "Size of the write-ahead log."
    yield "remora_log_bytes", "gauge", text, _one(log.wal_bytes)
    text = "For how long a reader has kept the write-ahead log from being shortened."
    yield "remora_log_held_seconds", "gauge", text, _one(log.wal_held_s)
    text = "1 when nothing can be stored any more: another process has the journal."
    yield "remora_lost", "gauge", text, _one(bool(log.lost))


def _jobs(of: RuntimeStatistics) -> Iterator[_Figures]:
    queues = of.supervisor.queues

    def each(name: str) -> list[_Sample]:
        return [({"queue": queue}, getattr(one, name)) for queue, one in queues.items()]

    yield "remora_jobs_waiting", "gauge", "Background jobs that wait.", each("waiting")
    yield "remora_jobs_delayed", "gauge", "Jobs that wait for another try.", each("delayed")
    yield "remora_jobs_running", "gauge", "Jobs that run.", each("running")
    yield "remora_jobs_done_total", "counter", "Jobs that ended.", each("done")
    yield "remora_jobs_retried_total", "counter", "Attempts that are repeated.", each("retried")
    text = "Jobs that were given up."
    yield "remora_jobs_dead_lettered_total", "counter", text, each("dead_lettered")
    text = "Jobs that were given up, and wait for an operator."
    yield "remora_dead_letters", "gauge", text, each("dead")
    text = "Age of the oldest job that is not done."
    yield "remora_jobs_oldest_seconds", "gauge", text, each("oldest_s")


def _upkeep(of: RuntimeStatistics) -> Iterator[_Figures]:
    tasks, summaries = of.schedule, of.compression

    def runs(name: str) -> list[_Sample]:
        return [({"task": task}, getattr(one, name)) for task, one in tasks.items()]

    def made(name: str) -> list[_Sample]:
        return [({"strategy": key}, getattr(one, name)) for key, one in summaries.items()]

    yield "remora_task_runs_total", "counter", "Runs of periodic tasks.", runs("runs")
    yield "remora_task_failures_total", "counter", "Runs that failed.", runs("failures")
    yield "remora_task_last_seconds", "gauge", "How long the last run took.", runs("last_s")
    yield "remora_summaries_total", "counter", "Summaries that were asked for.", made("calls")
    yield "remora_summary_failures_total", "counter", "Calls that failed.", made("failures")
    text = "Tokens of what was summarized."
    yield "remora_summary_tokens_in_total", "counter", text, made("tokens_in")
    yield "remora_summary_tokens_out_total", "counter", "Tokens of summaries.", made("tokens_out")
    saved = [({"strategy": key}, one.tokens_in - one.tokens_out) for key, one in summaries.items()]
    text = "Tokens that summaries saved since start: what went in, less what came out."
    yield "remora_summary_tokens_saved", "gauge", text, saved
    erasures = of.erasures
    text = "Erasures whose files are not rewritten yet."
    yield "remora_erasures_waiting", "gauge", text, _one(erasures.waiting)
    text = "Erasures that failed once or more, and wait."
    yield "remora_erasures_delayed", "gauge", text, _one(erasures.delayed)
    yield "remora_erasures_total", "counter", "Erasures that ended.", _one(erasures.finished)
    text = "Attempts to erase that failed."
    yield "remora_erasure_failures_total", "counter", text, _one(erasures.failures)


def _recall(of: RuntimeStatistics) -> Iterator[_Figures]:
    index, reranking, facts = of.user_index, of.reranking, of.facts
    found: list[_Sample] = [
        ({"rows": "held"}, index.hits),
        ({"rows": "read"}, index.misses),
        ({"rows": "too_many"}, index.passed),
    ]
    text = "Recalls, by where the user's rows were."
    yield "remora_index_recalls_total", "counter", text, found
    text = "Users whose rows are held in memory."
    yield "remora_index_users", "gauge", text, _one(index.users)
    yield "remora_index_rows", "gauge", "Rows that are held.", _one(index.rows)
    yield "remora_index_bytes", "gauge", "Size of these rows.", _one(index.size_bytes)
    text = "Users whose rows made room for those of others."
    yield "remora_index_evictions_total", "counter", text, _one(index.evictions)
    yield "remora_reranker_calls_total", "counter", "Calls of the reranker.", _one(reranking.calls)
    text = "Calls of the reranker without an answer that could be used."
    yield "remora_reranker_failures_total", "counter", text, _one(reranking.failures)
    yield "remora_reranker_late_total", "counter", "Calls that were late.", _one(reranking.late)
    text = "Recalls for which it was not asked, since it kept failing."
    yield "remora_reranker_skipped_total", "counter", text, _one(reranking.skipped)
    text = "Answers of the model that extracts facts."
    yield "remora_facts_calls_total", "counter", text, _one(facts.calls)
    yield "remora_facts_recorded_total", "counter", "Facts that are kept.", _one(facts.recorded)
    text = "Facts that took an earlier one's place."
    yield "remora_facts_superseding_total", "counter", text, _one(facts.superseding)
    dropped = [({"reason": reason}, count) for reason, count in facts.dropped.items()]
    yield "remora_facts_dropped_total", "counter", "Facts that were not used.", dropped
    repaired = [({"part": part}, count) for part, count in facts.repaired.items()]
    yield "remora_facts_repaired_total", "counter", "Parts that were left out.", repaired


publish(__name__, __all__, globals())
