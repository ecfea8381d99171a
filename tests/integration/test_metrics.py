"""What Prometheus gets: read by its own parser, equal to the statistics, and enough for alarms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import remora.blocking
from remora import Config, Runtime, metrics
from remora.api.health import of_problems
from remora.cluster.sharded import ShardedRuntime
from remora.results import Health, HealthProblem, Histogram, RuntimeStatistics
from remora.runtime.meters import SECONDS, HistogramMeter
from tests.configs import LEAN, PLAIN, PLAIN_TREE
from tests.harness import user
from tests.promql import evaluate, read_scrape
from tests.remote import Owner

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "examples" / "monitoring"
WELL = Health(live=True, ready=True, degraded=False)


def samples(text: str) -> dict[str, float]:
    """Each sample, by its name and labels as they are written."""
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())):
            sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }  # fmt: skip


def numbers(value: object) -> list[float]:
    """Every number of the statistics; of a histogram, how many values it has."""
    if isinstance(value, Histogram):
        return [value.count]
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        return [number for one in value.values() for number in numbers(one)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


async def test_a_scrape_agrees_with_the_statistics(tmp_path: Path) -> None:
    """And these with what was done, and with the journal."""
    async with Runtime(tmp_path / "memory", config=LEAN) as runtime:
        await runtime.ready()
        for number in range(5):
            await runtime.session("ann", f"s{number % 2}").append([user(f"fact {number}")] * 2)
        await runtime.session("ann", "s0").load()
        await runtime.session("ann", "s0").load(query="fact 3")
        await runtime.user("ann").recall("fact 4")
        await runtime.settle()
        statistics, text = runtime.statistics(), metrics.render(runtime)
        messages = (await runtime.counts()).messages
    shown = samples(text)
    assert shown["remora_append_seconds_count"] == 5
    assert messages == 10
    assert shown["remora_load_seconds_count query=no"] == 1
    assert shown["remora_load_seconds_count query=yes"] == 1
    assert shown["remora_recall_seconds_count"] == 2
    assert shown["remora_context_sources_total source=long_term status=ok"] == 1
    assert shown["remora_commits_total"] == statistics.log.commits
    assert shown["remora_commit_seconds_count"] == statistics.log.commit_s.count
    assert shown["remora_commit_writes_sum"] <= shown["remora_writes_total"]
    assert shown["remora_live"] == shown["remora_ready"] == 1
    assert "ann" not in text
    assert "fact 3" not in text
    for name, queue in statistics.supervisor.queues.items():
        assert shown[f"remora_jobs_done_total queue={name}"] == queue.done


def test_every_figure_is_shown() -> None:
    """A figure that is added to the statistics is added to the metrics; a summarizer may be called
    anything; a server may be scraped before its memory is open, and while it closes.
    """
    count = iter(range(1_000_001, 1_100_000))
    name = 'a "b"\\\n# TYPE x gauge'

    def fill(kind: Any) -> Any:
        if isinstance(kind, type) and issubclass(kind, Histogram):
            return Histogram((1.0,), (0, next(count)), 1.0)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            fields = msgspec.structs.fields(kind)
            return kind(**{field.name: fill(field.type) for field in fields})
        if kind is bool:
            return True
        if kind is str:
            return ""
        if kind in {int, float}:
            return next(count)
        return {name: fill(kind.__args__[1])}

    statistics = fill(RuntimeStatistics)
    shown = samples(metrics.exposition(statistics, WELL))
    assert set(numbers(statistics)) - set(shown.values()) == set()
    summaries = statistics.compression[name].calls
    assert shown[f"remora_summaries_total strategy={name}"] == summaries
    assert samples(metrics.render(Runtime.in_memory(config=PLAIN))) == {
        "remora_live": 1,
        "remora_ready": 0,
        "remora_problem code=not_opened effect=not ready": 1,
    }


async def test_shards_and_workers(tmp_path: Path) -> None:
    """Shards are added, and a worker shows what the owner counts for all workers."""
    owner = Owner(lambda: ShardedRuntime.of(Runtime(tmp_path / "memory", config=PLAIN), shards=2))
    await owner.start()
    try:
        one, other = owner.worker(), owner.worker()
        for memory in (one, other):
            runtime = ShardedRuntime(await memory.open(), transfers=memory.transfers)
            for number in range(6):
                session = runtime.session(f"user {number}", "s")
                await session.append(user("hello"))
                await session.load()
        await runtime.settle()
        shown = samples(metrics.render(runtime))
        assert shown["remora_append_seconds_count"] == 12
        assert shown["remora_load_seconds_count query=no"] == 12
        assert shown["remora_actors_live"] >= 6
        for memory in (one, other):
            await memory.aclose()
    finally:
        await owner.stop()


def test_what_summaries_saved() -> None:
    config = Config.from_dict({**PLAIN_TREE, "buffer": {"token_limit": 400, "summary_tokens": 50}})
    with remora.blocking.Runtime.in_memory(config=config) as runtime:
        runtime.session("ann", "s").append([user("word " * 60) for _ in range(12)])
        runtime.settle()
        (made,) = [one for one in runtime.statistics().compression.values() if one.calls]
        text = metrics.render(runtime)
    saved = [value for name, value in samples(text).items() if "tokens_saved" in name]
    assert made.tokens_in > made.tokens_out > 0
    assert sum(saved) == made.tokens_in - made.tokens_out


def test_histograms() -> None:
    """Bounds belong to the bucket below them, as ``le`` says."""
    meter = HistogramMeter((1.0, 10.0))
    for value in (0.5, 1.0, 1.5, 10.0, 11.0):
        meter.add(value)
    found = meter.figures()
    assert (found.counts, found.count, found.sum) == ((2, 2, 1), 5, 24.0)
    assert [found.quantile(share) for share in (0.4, 0.5, 0.99)] == [1.0, 10.0, 10.0]
    assert Histogram().quantile(0.5) == 0.0
    before = Histogram((1.0, 10.0), (1, 0, 1), 10.0)
    assert found.since(before) == Histogram((1.0, 10.0), (1, 2, 0), 14.0)
    assert before.since(found) == before  # it began again


# -- alarms ----------------------------------------------------------------------------------------


def well() -> RuntimeStatistics:
    """Of a runtime in which nothing is wrong."""
    with remora.blocking.Runtime.in_memory(config=PLAIN) as runtime:
        for _ in range(3):
            runtime.session("ann", "s").append(user("hello"))
            runtime.session("ann", "s").load()
        found = runtime.statistics()
    (name,) = (name for name, one in found.compression.items() if not one.calls)
    return msgspec.structs.replace(found, compression={name: found.compression[name]})


Change = Callable[[RuntimeStatistics], RuntimeStatistics]


def changed(part: str, **values: Any) -> Change:
    """Other values in a part of the statistics."""

    def change(of: RuntimeStatistics) -> RuntimeStatistics:
        one = msgspec.structs.replace(getattr(of, part), **values)
        return msgspec.structs.replace(of, **{part: one})

    return change


def slow(of: RuntimeStatistics) -> RuntimeStatistics:
    counts = [0] * (len(SECONDS) + 1)
    counts[SECONDS.index(2.5)] = 50
    return changed("verbs", append_s=Histogram(SECONDS, tuple(counts), 100.0))(of)


def in_queue(**values: Any) -> Change:
    def change(of: RuntimeStatistics) -> RuntimeStatistics:
        queues = dict(of.supervisor.queues)
        queues["summarize"] = msgspec.structs.replace(queues["summarize"], **values)
        return changed("supervisor", queues=queues)(of)

    return change


def failing_summaries(of: RuntimeStatistics) -> RuntimeStatistics:
    made = {
        name: msgspec.structs.replace(one, calls=one.calls + 10, failures=5)
        for name, one in of.compression.items()
    }
    return msgspec.structs.replace(of, compression=made)


LATE = {"long_term": {"ok": 10, "late": 5}}
CASES: dict[str, tuple[Change, str]] = {
    "RemoraNotLive": (lambda of: of, "not live"),
    "RemoraNotReady": (lambda of: of, "not ready"),
    "RemoraCommitsFail": (changed("log", failed_commits=1), ""),
    "RemoraRefuses": (changed("registry", refused=40), ""),
    "RemoraAppendsSlow": (slow, ""),
    "RemoraRecallLate": (changed("verbs", sources=LATE), ""),
    "RemoraDeadLetters": (in_queue(dead=1), ""),
    "RemoraJobsLate": (in_queue(oldest_s=4_000.0), ""),
    "RemoraSummariesFail": (failing_summaries, ""),
    "RemoraErasureDelayed": (changed("erasures", delayed=1), ""),
}
"""What is wrong when each rule fires: the statistics, and the effect of a problem."""


def test_each_alert_fires_and_no_other() -> None:
    """Of what is wrong, and of nothing while all is well."""
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    rules = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
    assert sorted(rules) == sorted(CASES)
    statistics = changed("verbs", sources={"long_term": {"ok": 10, "late": 0}})(well())

    def fired(after: RuntimeStatistics, health: Health) -> set[str]:
        scrapes = [
            (at, read_scrape(metrics.exposition(of, how), instance="a:8000", job="agent"))
            for at, of, how in ((0.0, statistics, WELL), (60.0, after, health))
        ]
        return {name for name, query in rules.items() if evaluate(query, scrapes)}

    assert fired(statistics, WELL) == set()
    for name, (change, effect) in CASES.items():
        problems = [HealthProblem("some", effect, "")] if effect else []  # type: ignore[arg-type]
        expected = {name} | ({"RemoraNotReady"} if effect else set())
        assert fired(change(statistics), of_problems(problems)) == expected, name


async def test_the_dashboard_asks_for_what_there_is(tmp_path: Path) -> None:
    """Each of its queries is understood, and of a busy runtime each panel shows something."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    async with Runtime(tmp_path / "memory", config=LEAN) as runtime:
        await runtime.ready()
        scrapes = []
        for at in (0.0, 60.0):
            await runtime.session("ann", "s").append(user("hello"))
            await runtime.session("ann", "s").load()
            await runtime.session("ann", "s").load(query="hello")
            scrapes.append((at, read_scrape(metrics.render(runtime), instance="a", job="agent")))
    names = {name for name, _ in scrapes[-1][1]}
    for panel in dashboard["panels"]:
        shown = [evaluate(target["expr"], scrapes) for target in panel["targets"]]
        assert any(shown) or "late" in panel["title"], panel["title"]
        for target in panel["targets"]:
            for name in re.findall(r"remora_\w+", target["expr"]):
                assert name in names or name == "remora_problem", name
