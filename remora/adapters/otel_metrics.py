"""The figures of a memory as metrics of OpenTelemetry.

Needs the extra: ``pip install "remora[otel]"``, which is OpenTelemetry's API; the application
chooses the SDK and the exporter::

    runtime = remora.Runtime("memory/")
    report_figures(runtime)
    async with runtime:
        ...

They are those of `remora.metrics`: a name there is ``remora_append_seconds``, here
``remora.append`` with the unit ``s``, which an exporter to Prometheus writes as that again. Times
and sizes of commits are recorded when they are measured, all else is read when the SDK collects.
Without this call, nothing of it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

from remora.api.base import BaseRuntime, holder_of
from remora.api.health import of_problems
from remora.api.runtime import Runtime
from remora.api.shards import built_of
from remora.api.status import RuntimeStatistics
from remora.api.threads import original_of
from remora.errors import InvalidInput, OwnershipLost, RuntimeClosed
from remora.metrics import Family, families_of
from remora.runtime.log import LogStatistics
from remora.runtime.meters import SECONDS, SIZES, Histogram, HistogramMeter
from remora.runtime.passivation import RegistryStatistics
from remora.runtime.supervisor import SupervisorStatistics
from remora.services.parts import Parts

try:
    from opentelemetry.metrics import (
        CallbackOptions,
        Meter,
        MeterProvider,
        Observation,
        get_meter,
    )
    from opentelemetry.metrics import Histogram as HistogramInstrument
except ImportError as e:
    raise ImportError('metrics need OpenTelemetry: pip install "remora[otel]"') from e

__all__ = ["report_figures"]

_Record: TypeAlias = Callable[[float], object]
_UNITS = {"_seconds": "s", "_bytes": "By"}
_NOTHING = RuntimeStatistics(
    RegistryStatistics(*[0] * 11), LogStatistics(0, 0, 0, 0, 0), SupervisorStatistics({}), {}, {}
)


def report_figures(
    runtime: Any,
    *,
    meter_provider: MeterProvider | None = None,
    attributes: Mapping[str, str] | None = None,
) -> None:
    """Have a runtime report its figures, from when it opens.

    They have no id of a user and no text. Those of shards are added.

    Args:
        runtime: not open: a `remora.Runtime`, a memory in shards, or one of `remora.blocking`. What
            `remora.connect` returned is refused: its figures are the owner's, so give the runtime
            that `remora.connect` names, and the owner alone reports them.
        meter_provider: None for OpenTelemetry's global one.
        attributes: of every figure, to tell several runtimes of a process apart.

    Raises:
        InvalidInput: it is open, or no runtime of this process.
    """
    original = original_of(runtime)
    shards: list[Any] = [*getattr(original, "shards", [original])]
    if not all(isinstance(shard, Runtime) for shard in shards):
        raise InvalidInput(
            f"report_figures takes a runtime that this process opens, not {type(runtime).__name__}"
        )
    holders = [holder_of(shard) for shard in shards]
    if any(holder.phase == "open" for holder in holders):
        raise InvalidInput("the runtime is open: call report_figures before that")
    meter = get_meter("remora", meter_provider=meter_provider)
    more = dict(attributes or {})
    recorders = _Figures(original, more).register(meter)
    for shard, holder in zip(shards, holders, strict=True):
        holder.wrap = partial(_attach, ref(shard), recorders, holder.wrap)


def _recorder(instrument: HistogramInstrument, attributes: dict[str, str]) -> _Record:
    def record(value: float) -> None:
        instrument.record(value, attributes)

    return record


def _attach(
    runtime: Callable[[], Runtime | None],
    recorders: Mapping[tuple[str, str], _Record],
    wrap: Callable[[Parts], Parts] | None,
    parts: Parts,
) -> Parts:
    """When a runtime opens: its meters tell the recorders as well."""
    found = runtime()
    built = None if found is None else built_of(found)
    if built is not None:
        meters: dict[tuple[str, str], HistogramMeter | None] = {
            ("remora_append_seconds", ""): built.verbs.append_s,
            ("remora_load_seconds", "no"): built.verbs.load_s,
            ("remora_load_seconds", "yes"): built.verbs.query_s,
        }
        if built.recall is not None:
            meters["remora_recall_seconds", ""] = built.recall.meter
        commits = getattr(built.journal, "meter", None)  # a journal of the application has none
        if commits is not None:
            meters["remora_commit_seconds", ""] = commits.commit_s
            meters["remora_commit_writes", ""] = commits.batch_writes
        for key, meter in meters.items():
            if meter is not None:
                meter.on_add = recorders[key]
    return parts if wrap is None else wrap(parts)


class _Figures:
    """Reads the figures of a runtime, once for all instruments that are collected together."""

    def __init__(self, runtime: BaseRuntime, more: dict[str, str]) -> None:
        self._runtime = ref(runtime)
        self._more = more
        self._read: dict[str, Family | None] = {}
        self._names: list[str] = []

    def register(self, meter: Meter) -> dict[tuple[str, str], _Record]:
        """Make the instruments; returns what records the values of histograms."""
        recorders: dict[tuple[str, str], _Record] = {}
        for name, kind, text, samples in families_of(_NOTHING, of_problems(())):
            dotted, unit = _name(name)
            if kind == "histogram":
                bounds = SECONDS if unit == "s" else SIZES
                instrument = meter.create_histogram(
                    dotted, unit, text, explicit_bucket_boundaries_advisory=bounds
                )
                for labels, _ in samples:
                    key = (name, "".join(labels.values()))
                    recorders[key] = _recorder(instrument, {**self._more, **labels})
                continue
            self._names.append(name)
            observe = [partial(self._observe, name)]
            if kind == "counter":
                meter.create_observable_counter(dotted, observe, unit, text)
            else:
                meter.create_observable_gauge(dotted, observe, unit, text)
        return recorders

    def _observe(self, name: str, _: CallbackOptions) -> Iterable[Observation]:
        if name not in self._read:  # it was told: another collection has begun
            self._read = self._take()
        family = self._read.pop(name, None)
        for labels, value in () if family is None else family.samples:
            if not isinstance(value, Histogram):
                yield Observation(+value, {**self._more, **labels})

    def _take(self) -> dict[str, Family | None]:
        """By name; None for what a runtime that is not open does not have."""
        found: dict[str, Family | None] = dict.fromkeys(self._names)
        runtime = self._runtime()
        if runtime is None:
            return found
        statistics = None
        with suppress(RuntimeClosed, OwnershipLost):
            statistics = runtime.statistics()
        found.update((one.name, one) for one in families_of(statistics, runtime.health()))
        return found


def _name(name: str) -> tuple[str, str]:
    """A family's name and unit as OpenTelemetry has them: see above."""
    name = name.removesuffix("_total")
    unit = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")
    for suffix in _UNITS:
        name = name.removesuffix(suffix)
    return name.replace("_", ".", 1), unit
