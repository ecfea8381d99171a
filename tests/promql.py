"""The part of Prometheus' query language that our alert rules and dashboard use, over scrapes.

Vectors are matched by all their labels, as Prometheus does without ``on``. A rate is the growth
between the first and the last scrape of its range, without extrapolation.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Labels", "Vector", "evaluate", "read_scrape"]

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Scrape = Mapping[tuple[str, Labels], float]
"""The samples of one moment, by name and labels."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-zA-Z_:][\w:]*)|(?P<text>\"[^\"]*\")"
    r"|(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])|(?P<sign>==|!=|>=|<=|=~|!~|[-+*/><=(){},]))"
)
_COMPARE = {">": operator.gt, "<": operator.lt, "==": operator.eq, "!=": operator.ne}
_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else math.nan,
}
_MATCH: Mapping[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "=~": lambda value, pattern: re.fullmatch(pattern, value) is not None,
    "!~": lambda value, pattern: re.fullmatch(pattern, value) is None,
}


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
        query: an expression of the part that is known here.
        scrapes: when, in seconds, and what; in the order of time.
    """
    parser = _Parser(list(_tokens(query)), scrapes)
    value = parser.comparison()
    assert not parser.left, f"not understood: {parser.left} in {query}"
    assert isinstance(value, dict), f"{query} is a number"
    return value


def _tokens(query: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(query.rstrip()):
        found = _TOKEN.match(query, place)
        assert found, f"not understood: {query[place:]}"
        place = found.end()
        assert found.lastgroup
        yield found.lastgroup, found.group(found.lastgroup)


class _Parser:
    def __init__(
        self, tokens: list[tuple[str, str]], scrapes: Sequence[tuple[float, Scrape]]
    ) -> None:
        self.left = tokens
        self._scrapes = scrapes

    def _next(self, *signs: str) -> str:
        """The next token, which is one of these if there are any."""
        _, text = self.left.pop(0)
        assert not signs or text in signs, f"{text} where {signs} was expected"
        return text

    def _peek(self) -> str:
        return self.left[0][1] if self.left else ""

    def comparison(self) -> Vector | float:
        value = self._sum()
        if self._peek() in _COMPARE:
            holds = _COMPARE[self._next()]
            other = self._sum()
            pairs = _pair(value, other)
            return {labels: a for labels, (a, b) in pairs.items() if holds(a, b)}
        return value

    def _sum(self) -> Vector | float:
        value = self._product()
        while self._peek() in {"+", "-"}:
            value = _combine(_ARITHMETIC[self._next()], value, self._product())
        return value

    def _product(self) -> Vector | float:
        value = self._term()
        while self._peek() in {"*", "/"}:
            value = _combine(_ARITHMETIC[self._next()], value, self._term())
        return value

    def _term(self) -> Vector | float:
        kind, text = self.left.pop(0)
        if kind == "number":
            return float(text)
        if text == "(":
            value = self.comparison()
            self._next(")")
            return value
        if text in {"sum", "max"}:
            return self._aggregate(sum if text == "sum" else max)
        if text in {"rate", "increase"}:
            return self._growth(rate=text == "rate")
        if text == "histogram_quantile":
            self._next("(")
            share = float(self._next())
            self._next(",")
            value = self.comparison()
            self._next(")")
            assert isinstance(value, dict)
            return _quantile(share, value)
        assert kind == "name", text
        return self._select(text, self._matchers())(self._scrapes[-1][1])

    def _aggregate(self, function: Callable[[list[float]], float]) -> Vector:
        by: list[str] = []
        if self._peek() == "by":
            self._next()
            self._next("(")
            while self._peek() != ")":
                by.append(self._next())
                if self._peek() == ",":
                    self._next()
            self._next(")")
        self._next("(")
        value = self.comparison()
        self._next(")")
        assert isinstance(value, dict)
        groups: dict[Labels, list[float]] = {}
        for labels, one in value.items():
            groups.setdefault(frozenset(pair for pair in labels if pair[0] in by), []).append(one)
        return {labels: function(values) for labels, values in groups.items()}

    def _growth(self, *, rate: bool) -> Vector:
        self._next("(")
        name = self._next()
        select = self._select(name, self._matchers())
        text = self._next().strip("[]")
        seconds = 300.0
        if not text.startswith("$"):
            seconds = int(text[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[text[-1]]
        self._next(")")
        now = self._scrapes[-1][0]
        inside = [scrape for at, scrape in self._scrapes if at > now - seconds]
        first, last = select(inside[0]), select(inside[-1])
        grown = {
            labels: value - first[labels] if value >= first[labels] else value  # it began again
            for labels, value in last.items()
            if labels in first and len(inside) > 1
        }
        return {labels: value / seconds for labels, value in grown.items()} if rate else grown

    def _matchers(self) -> list[tuple[str, str, str]]:
        found = []
        if self._peek() == "{":
            self._next()
            while self._peek() != "}":
                found.append((self._next(), self._next(*_MATCH), self._next().strip('"')))
                if self._peek() == ",":
                    self._next()
            self._next()
        return found

    @staticmethod
    def _select(name: str, matchers: Sequence[tuple[str, str, str]]) -> Callable[[Scrape], Vector]:
        def select(scrape: Scrape) -> Vector:
            return {
                labels: value
                for (one, labels), value in scrape.items()
                if one == name
                and all(
                    _MATCH[sign](dict(labels).get(key, ""), text) for key, sign, text in matchers
                )
            }

        return select


def _pair(a: Vector | float, b: Vector | float) -> dict[Labels, tuple[float, float]]:
    if isinstance(a, dict):
        if isinstance(b, dict):
            return {labels: (one, b[labels]) for labels, one in a.items() if labels in b}
        return {labels: (one, b) for labels, one in a.items()}
    assert isinstance(b, dict), "two numbers"
    return {labels: (a, one) for labels, one in b.items()}


def _combine(
    function: Callable[[float, float], float], a: Vector | float, b: Vector | float
) -> Vector | float:
    if not isinstance(a, dict) and not isinstance(b, dict):
        return function(a, b)
    return {labels: function(*pair) for labels, pair in _pair(a, b).items()}


def _quantile(share: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        rest = frozenset(pair for pair in labels if pair[0] != "le")
        groups.setdefault(rest, []).append((float(dict(labels)["le"]), count))
    found: Vector = {}
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
