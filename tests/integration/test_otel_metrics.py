"""Figures of a memory as metrics, as OpenTelemetry's SDK reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

import remora
from remora import Config, Runtime
from remora.adapters.otel import trace_calls
from remora.adapters.otel_metrics import report_figures
from remora.cluster.sharded import ShardedRuntime
from remora.errors import InvalidInput
from remora.testing import HashEmbedder
from tests.harness import user

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "buffer": {"token_limit": 200, "summary_tokens": 50},
        "supervisor": {"max_attempts": 1},
        "recall": {"deadline_s": 600},
    }
)
SUFFIXES = {"s": "_seconds", "By": "_bytes", "": ""}
Figures = dict[tuple[str, tuple[tuple[str, str], ...]], Any]


class Metrics:
    """What an SDK collects."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    def collect(self) -> Figures:
        """By the name that Prometheus has for it, and labels: the value, or its data point."""
        found: Figures = {}
        data = self._reader.get_metrics_data()
        for resource in () if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    name = metric.name.replace(".", "_") + SUFFIXES[metric.unit or ""]
                    if getattr(metric.data, "is_monotonic", False):
                        name += "_total"
                    for point in metric.data.data_points:
                        known = (point.attributes or {}).items()
                        labels = tuple(sorted((k, str(v)) for k, v in known))
                        histogram = isinstance(point, HistogramDataPoint)
                        found[name, labels] = point if histogram else getattr(point, "value", None)
        return found


def scraped(runtime: Any) -> Figures:
    """The same of `remora.metrics`: histograms as their counts, bucket by bucket."""
    found: Figures = {}
    buckets: dict[Any, list[float]] = {}
    for family in text_string_to_metric_families(remora.metrics.render(runtime)):
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            if sample.name.endswith("_bucket"):
                buckets.setdefault((sample.name[: -len("_bucket")], labels), []).append(
                    sample.value
                )
            elif family.type != "histogram":
                found[sample.name, labels] = sample.value
    for key, sums in buckets.items():
        found[key] = [int(now - before) for now, before in zip(sums, [0.0, *sums], strict=False)]
    return found


def poison(text: str) -> str:
    if "poison" in text:
        raise ValueError("no")
    return text


async def talk(runtime: Any) -> None:
    """Something of each kind: appends, compactions, loads, recalls, a dead letter."""
    await runtime.ready()
    for name in ("ann", "bob", "eve"):
        chat = runtime.session(name, "one")
        for number in range(20):
            await chat.append([user(f"Hive {number} has bees, and honey."), user("Hens lay eggs.")])
        await chat.load()
        await chat.load(query="bees")
        await runtime.user(name).recall("hens")
    bad = runtime.session("eve", "bad")
    await bad.append(user("poison"))
    await bad.flush()
    await runtime.settle()


@pytest.mark.parametrize("shards", [1, 2])
async def test_they_are_those_of_prometheus(tmp_path: Path, shards: int) -> None:
    """Each name, label, value and bucket, so that dashboards and alarms hold for both."""
    metrics = Metrics()
    runtime: Any = Runtime(
        tmp_path, config=CONFIG, embedder=HashEmbedder(16), redact_long_term=poison
    )
    if shards > 1:
        runtime = ShardedRuntime.of(runtime, shards=shards)
    report_figures(runtime, meter_provider=metrics.provider)
    async with runtime:
        await talk(runtime)
        collected, expected = metrics.collect(), scraped(runtime)
    histograms = 0
    for key, value in expected.items():
        if isinstance(value, list):
            counts = list(collected[key].bucket_counts) if any(value) else value
            assert counts == value, key
            histograms += any(value)
        elif key[0] not in {"remora_jobs_oldest_seconds", "remora_log_held_seconds"}:
            assert collected[key] == value, key
    assert collected.keys() <= expected.keys()
    assert histograms == 6
    append = collected["remora_append_seconds", ()]
    assert append.count == 61
    assert append.sum > 0
    assert collected["remora_dead_letters", (("queue", "flush"),)] == 1
    assert any(
        name == "remora_summary_tokens_saved" and v > 0 for (name, _), v in collected.items()
    )


async def test_each_collection_reads_again(tmp_path: Path) -> None:
    """With the attributes that tell runtimes apart, and spans of the same runtime as well."""
    metrics = Metrics()
    runtime = Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder(16))
    report_figures(runtime, meter_provider=metrics.provider, attributes={"memory": "a"})
    trace_calls(runtime)
    mine = (("memory", "a"),)
    assert metrics.collect()["remora_ready", mine] == 0
    async with runtime:
        await runtime.ready()
        for count in (1, 2):
            await runtime.session("ann", "one").append(user("Hello."))
            found = metrics.collect()
            assert found["remora_writes_total", mine] == count
            assert found["remora_append_seconds", mine].count == count
            assert found["remora_ready", mine] == 1
    found = metrics.collect()
    assert found["remora_ready", mine] == 0
    assert ("remora_actors_live", mine) not in found
    del runtime


async def test_what_is_refused(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder(16))
    async with runtime:
        with pytest.raises(InvalidInput, match="before that"):
            report_figures(runtime)
    connected: Any = remora.connect(tmp_path)
    for wrong in (connected, None):
        with pytest.raises(InvalidInput, match="a runtime that this process opens"):
            report_figures(wrong)
