"""The part of Prometheus' query language that our alert rules and dashboard use, over scrapes.

Vectors are matched by all their labels, as Prometheus does without ``on``. A rate is the growth
between the first and the last scrape of its range, without extrapolation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Labels", "Vector", "evaluate", "read_scrape"]

Labels = frozenset[tuple[str, str]]
Scrape = Mapping[tuple[str, Labels], float]
"""The samples of one moment, by name and labels."""

_SELECTOR = re.compile(r"(?P<name>remora_\w+)(?:\{(?P<labels>[^}]*)\})?(?:\[(?P<range>[^]]+)\])?")
_AGGREGATION = re.compile(r"\b(?P<function>sum|max)(?: by \((?P<by>[\w, ]+)\))? ?(?=\()")
_MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')
_UNITS_S = {"s": 1, "m": 60, "h": 3_600}


class Vector(dict[Labels, float]):
    """Values by labels. Operators pair those with the same labels; a comparison keeps values."""

    def _paired(self, other: Vector | float) -> Iterator[tuple[Labels, float, float]]:
        for labels, value in self.items():
            if not isinstance(other, Vector):
                yield labels, value, other
            elif labels in other:
                yield labels, value, other[labels]

    def __add__(self, other: Vector | float) -> Vector:
        return Vector({labels: a + b for labels, a, b in self._paired(other)})

    def __sub__(self, other: Vector | float) -> Vector:
        return Vector({labels: a - b for labels, a, b in self._paired(other)})

    def __rmul__(self, factor: float) -> Vector:
        return Vector({labels: factor * value for labels, value in self.items()})

    def __gt__(self, other: Vector | float) -> Vector:
        return Vector({labels: a for labels, a, b in self._paired(other) if a > b})

    def __eq__(self, other: object) -> Vector:  # type: ignore[override]
        return Vector({labels: value for labels, value in self.items() if value == other})

    __hash__ = None


class _Range(NamedTuple):
    first: Vector
    last: Vector
    seconds: float


def read_scrape(text: str, **target: str) -> Scrape:
    """What Prometheus stores of a scrape: each sample, with the labels of what was scraped."""
    return {
        (sample.name, frozenset({**sample.labels, **target}.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def evaluate(query: str, scrapes: Sequence[tuple[float, Scrape]]) -> Vector:
    """What a query gives at the time of the last scrape.

    Args:
        query: an expression, which is read as one of Python.
        scrapes: when, in seconds, and what; in the order of time.
    """

    def select(name: str, labels: str | None, within: str | None) -> Vector | _Range:
        now, newest = scrapes[-1]
        if within is None:
            return _selected(newest, name, labels)
        seconds = 300.0 if within.startswith("$") else int(within[:-1]) * _UNITS_S[within[-1]]
        first = next(scrape for at, scrape in scrapes if at > now - seconds)
        return _Range(_selected(first, name, labels), _selected(newest, name, labels), seconds)

    code = _AGGREGATION.sub(lambda one: f"_aggregated({one['function']}, {one['by']!r})", query)
    code = _SELECTOR.sub(lambda one: f"select{one.groups()}", code)
    value = eval(code, {**globals(), "select": select})  # of our own files
    assert isinstance(value, Vector), f"{query} is no vector"
    return value


def _selected(scrape: Scrape, name: str, labels: str | None) -> Vector:
    matchers = _MATCHER.findall(labels or "")

    def matches(own: Labels) -> bool:
        return all(
            re.fullmatch(text if sign == "=~" else re.escape(text), dict(own).get(key, ""))
            for key, sign, text in matchers
        )

    return Vector({own: x for (one, own), x in scrape.items() if one == name and matches(own)})


def increase(found: _Range) -> Vector:
    """By how much counters grew; one that is smaller than before began again."""
    first, last, _ = found
    return Vector(
        {
            labels: value - first[labels] if value >= first[labels] else value
            for labels, value in last.items()
            if labels in first
        }
    )


def rate(found: _Range) -> Vector:
    """The same for each second."""
    return 1 / found.seconds * increase(found)


def _aggregated(
    function: Callable[[Iterable[float]], float], by: str | None
) -> Callable[[Vector], Vector]:
    names = (by or "").split(", ")

    def aggregated(vector: Vector) -> Vector:
        groups: dict[Labels, list[float]] = {}
        for labels, value in vector.items():
            group = frozenset(pair for pair in labels if pair[0] in names)
            groups.setdefault(group, []).append(value)
        return Vector({labels: function(values) for labels, values in groups.items()})

    return aggregated


def histogram_quantile(share: float, buckets: Vector) -> Vector:
    """The value below which a share of the observations is, between two bounds by proportion."""
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        rest = frozenset(pair for pair in labels if pair[0] != "le")
        groups.setdefault(rest, []).append((float(dict(labels)["le"]), count))
    found = Vector()
    for labels, counts in groups.items():
        counts.sort()
        total, lower, below = counts[-1][1], 0.0, 0.0
        for bound, count in counts:
            if total and count >= share * total:
                inside = (share * total - below) / (count - below) if count > below else 1.0
                found[labels] = lower if math.isinf(bound) else lower + (bound - lower) * inside
                break
            lower, below = bound, count
    return found
