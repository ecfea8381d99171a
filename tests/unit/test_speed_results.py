"""The speed suite's arithmetic and its page: paired ratios, bars, what failed."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.speed.__main__ import keep, planned, what_is_measured
from benchmarks.speed.bars import check, read_bars
from benchmarks.speed.claim import Bar, Case, higher_is_better
from benchmarks.speed.claims import CLAIMS, claim
from benchmarks.speed.plots import curves
from benchmarks.speed.results import Figures, Spread, best, held, joined, ratios, spread
from benchmarks.speed.stores.store import BUDGET, counted, within
from benchmarks.speed.table import case_text, figure_text, rendered
from benchmarks.speed.text import percentile, texts

FIGURES: Figures = {
    "256": {
        "remora": {"per_s": [100.0, 400.0, None], "p99_ms": [5.0, 8.0]},
        "limit": {"per_s": [200.0, 500.0, 100.0]},
        "slow": {"per_s": [10.0, 20.0]},
        "quick": {"per_s": [None, 50.0]},
    },
    "1": {"remora": {"p99_ms": [4.0, 4.0]}},
}


def test_ratios_are_paired_by_repeat() -> None:
    """S4.31: the ratio of each repeat, and not of medians; a repeat that one side missed has none."""  # noqa: E501
    assert ratios([100.0, 400.0, None], [200.0, 500.0, 100.0]) == [0.5, 0.8, None]
    assert spread([0.5, 0.8, None]) == Spread(0.65, 0.5, 0.8, 2)
    assert spread([None]) is None
    assert ratios([1.0], [0.0]) == [None]


def test_a_page_names_no_place_of_the_machine() -> None:
    """S4.31: the command that is shown says what was measured, and not where files were."""
    words = [
        "--claims",
        "append",
        "--json",
        "/x/y.json",
        "--cases",
        "1",
        "16",
        "--table=/x/t.md",
        "--repeat",
        "2",
        "--dir",
        "/disk",
        "--data",
        "/x/one.jsonl",
        "/x/two.jsonl",
        "--seed",
        "3",
    ]
    assert what_is_measured(words) == [
        "--claims",
        "append",
        "--cases",
        "1",
        "16",
        "--repeat",
        "2",
        "--seed",
        "3",
    ]


def test_runs_join_case_by_case() -> None:
    """S4.31: several runs make one page; a case is whole, of the last run that measured it, so that
    no ratio is of two runs.
    """

    def run(number: int, claims: dict[str, Any], failures: dict[str, Any]) -> dict[str, Any]:
        return {
            "runs": [{"date": f"day {number}", "cases": {one: [*claims[one]] for one in claims}}],
            "claims": claims,
            "sizes": {
                claim: {case: {"sessions": number} for case in cases}
                for claim, cases in claims.items()
            },
            "failures": failures,
        }

    first = run(
        1,
        {
            "append": {
                "1": {"remora": {"per_s": [1.0]}, "limit": {"per_s": [2.0]}},
                "16": {"remora": {}},
            }
        },
        {"append": {"1": {}}},
    )
    second = run(
        2, {"append": {"1": {"remora": {"per_s": [3.0]}}}, "load": {"20": {"remora": {}}}}, {}
    )
    whole = joined([first, second])
    assert whole["claims"] == {
        "append": {"1": {"remora": {"per_s": [3.0]}}, "16": {"remora": {}}},
        "load": {"20": {"remora": {}}},
    }
    assert whole["sizes"]["append"] == {"1": {"sessions": 2}, "16": {"sessions": 1}}
    assert whole["failures"] == {"append": {}}
    assert whole["runs"] == [
        {"date": "day 1", "cases": {"append": ["16"]}},
        {"date": "day 2", "cases": {"append": ["1"], "load": ["20"]}},
    ]
    assert joined([first]) == first
    third = run(3, {"append": {"16": {"remora": {}}}}, {})
    assert [one["date"] for one in joined([whole, third])["runs"]] == ["day 2", "day 3"]
    assert joined([first, run(4, {}, {})]) == first


def test_the_best_of_several() -> None:
    """S4.31: of rates the highest and of times the lowest, in each repeat anew."""
    assert best([[10.0, 20.0], [None, 50.0]], highest=True) == [10.0, 50.0]
    assert best([[10.0, 20.0], [None, 50.0]], highest=False) == [10.0, 20.0]
    assert best([[None]], highest=True) == [None]
    assert [
        higher_is_better(name)
        for name in ("per_s", "loads_per_s", "p99_ms", "bytes_live", "lag_p99_ms")
    ] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("bar", "median", "met"),
    [
        (Bar("256", "", "per_s", "limit", least=0.6), 0.65, True),
        (Bar("256", "", "per_s", "limit", least=0.7), 0.65, False),
        (Bar("256", "", "per_s", ("slow", "quick"), least=9), 9.0, True),
        (Bar("256", "", "p99_ms", most=6), 6.5, False),
        (Bar("256", "", "p99_ms", most=6.5), 6.5, True),
        (Bar("256", "", "p99_ms", than_case="1", most=1.7), 1.625, True),
        (Bar("256", "", "p99_ms", "remora", than_case="1", most=1.6), 1.625, False),
        (Bar("256", "", "per_s", "limit", least=0.1, contestant="quick"), 0.1, True),
    ],
)
def test_bars(bar: Bar, median: float, *, met: bool) -> None:
    """S4.31: absolute ones, and ones against a contestant, the best of several, and another case."""  # noqa: E501
    verdict = held(bar, FIGURES)
    assert verdict.measured is not None
    assert (round(verdict.measured.median, 4), verdict.met) == (median, met)


def test_a_bar_without_figures_is_not_met() -> None:
    """S4.31: what was not measured is neither met nor missed."""
    for bar in (
        Bar("256", "", "per_s", "nobody", least=0), Bar("7", "", "per_s", least=0), Bar("256", "", "p1_ms", most=9),  # noqa: E501
        Bar("256", "", "per_s", than_case="7", least=0),
    ):  # fmt: skip
        assert held(bar, FIGURES).met is None


def results() -> dict[str, Any]:
    found: dict[str, Any] = {
        "runs": [
            {
                "date": "today",
                "machine": "a machine",
                "versions": {"SQLite": "3"},
                "cases": {"load": ["64"]},
            }
        ],
        "claims": {},
        "sizes": {},
        "failures": {},
    }
    case = Case("load", "64", {"messages": 64})
    for repeat, took in enumerate((100.0, 300.0, 120.0)):
        keep(
            found,
            case,
            repeat,
            "remora",
            {"figures": {"p50_us": took}, "versions": {"remora": "1"}},
        )
    keep(found, case, 0, "limit", {"figures": {"p50_us": 10.0}})
    keep(found, case, 1, "limit", {"failed": "OSError: disk | full"})
    keep(found, case, 2, "limit", {"figures": {"p50_us": 20.0}})
    keep(found, case, 0, "redis", {"skipped": "no redis-server on the path"})
    keep(found, Case("load", "20", {"messages": 20}), 0, "remora", {"figures": {"p50_us": 10.0}})
    return found


def test_figures_keep_their_repeat() -> None:
    """S4.31: a repeat that failed leaves a gap, so that the others stay paired."""
    found = results()
    assert found["claims"]["load"]["64"]["limit"] == {"p50_us": [10.0, None, 20.0]}
    assert found["runs"][0]["versions"] == {"SQLite": "3", "remora": "1"}


def test_the_page() -> None:
    """S4.31: medians, paired ratios with their range, and why there is no figure; plots first, and
    no bars: they are no reader's business.
    """
    page = rendered(results(), {"load": claim("load")}, {"load": ["plots/load.svg"]})
    assert "| 64 messages | remora | 120 |  |" in page
    assert "| 64 messages | limit | 15 | 8 (6-10) (1 failed: OSError: disk \\| full) |" in page
    assert "| 64 messages | redis | skipped: no redis-server on the path |" in page
    assert page.index("![Load a context](plots/load.svg)") < page.index("| 64 messages |")
    assert "missed" not in page
    assert "| today |" in page
    assert "Machine: a machine." in page


def test_who_is_faster() -> None:
    """A line for each that is faster, with where, how much and why; none for a physical limit."""
    found = results()
    for repeat, (ours, theirs) in enumerate([(100.0, 150.0), (100.0, 120.0)]):
        case = Case("append", "16", {"sessions": 16})
        for contestant, per_s in (
            ("remora", ours),
            ("openai_agents", theirs),
            ("limit", 1_000.0),
            ("langgraph_store", 50.0),
        ):
            keep(found, case, repeat, contestant, {"figures": {"p50_ms": 1.0, "per_s": per_s}})
    for contestant, took in (("remora", 120.0), ("redis", 40.0)):
        keep(found, Case("load", "2000"), 0, contestant, {"figures": {"p50_us": took}})
    page = rendered(found, {name: claim(name) for name in ("append", "load")})
    why = claim("append").FASTER["openai_agents"]
    assert f"- *openai_agents* is faster, 1.33 times at 16 sessions: {why}." in page
    assert "- *redis* is faster, 3 times at 2,000" in page
    assert "- *limit*" not in page
    assert "- *langgraph_store*" not in page


def test_bars_are_checked() -> None:
    """The bars of the file are held against what was measured, and of nothing else."""
    found = results()
    keep(found, Case("load", "2000"), 0, "remora", {"figures": {"p50_us": 90.0}})
    table, verdicts = check(found, read_bars())
    missed = [(one.bar.case, one.bar.text) for one in verdicts if one.met is False]
    assert missed == [("64", "< 100 µs p50, warm")]
    assert table.row_count == sum(bar.case != "1" for bar in read_bars()["load"])
    assert set(read_bars()) <= {*CLAIMS, "recalled"}


@pytest.mark.parametrize(
    ("now", "worse"), [([90.0, 95.0], []), ([109.0, 140.0], []), ([111.0, 140.0], ["2000"])]
)
def test_what_is_worse_than_before(now: list[float], worse: list[str]) -> None:
    """Beyond the repeats of the earlier run, and beyond noise; a missed bar may stay so."""
    before, after = results(), results()
    for repeat in (0, 1):
        took = {"p50_us": [80.0, 100.0][repeat]}
        keep(before, Case("load", "2000"), repeat, "remora", {"figures": took})
        keep(after, Case("load", "2000"), repeat, "remora", {"figures": {"p50_us": now[repeat]}})
    _, verdicts = check(after, read_bars(), before)
    assert [one.bar.case for one in verdicts if one.worse] == worse


def test_every_row_has_its_columns() -> None:
    """S4.31: the page's tables are whole, whatever failed."""
    page = rendered(results(), {"load": claim("load")})
    for line in page.split("## ")[1].splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 5, line


def test_texts_of_figures() -> None:
    """S4.31: three digits are enough."""
    assert [figure_text("p50_us", value) for value in (0.01234, 1.234, 123.4, 12345.6)] == [
        "0.0123",
        "1.23",
        "123",
        "12,346",
    ]
    assert figure_text("per_s", 1234567.8) == "1,234,568"
    assert case_text("2000", {"sessions": 2_000}) == "2,000 sessions"
    assert case_text("idle", {"sessions": 1}) == "idle"


def options(**given: Any) -> Any:
    return SimpleNamespace(
        **({"smoke": False, "repeat": 2, "cases": [], "contestants": ""} | given)
    )


def test_the_order_rotates() -> None:
    """S4.31: contestants take turns within a repeat, and each repeat begins with the next."""
    plan = planned(["load"], [], options(cases=["64"], contestants="remora,limit,limit-dict"))
    assert [(repeat, one) for _, repeat, one in plan] == [
        (0, "remora"),
        (0, "limit"),
        (0, "limit-dict"),
        (1, "limit"),
        (1, "limit-dict"),
        (1, "remora"),
    ]
    assert len(planned(["append"], [], options(cases=["1"], contestants="remora"))) == 7, (
        "what the disk decides has more repeats"
    )
    assert not {one for *_, one in planned(["append"], ["redis"], options(cases=["16"]))} & {
        "adk",
        "mem0",
        "langgraph",
    }


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_fit_together(name: str) -> None:
    """S4.31: names are unique, bars name cases and contestants that there are, and a smoke run has
    remora in each claim.
    """
    module = claim(name)
    cases = [case.name for case in module.cases(smoke=False)]
    assert name == module.NAME
    assert cases
    assert len(cases) == len(set(cases))
    assert all(case.claim == name for smoke in (True, False) for case in module.cases(smoke))
    for bar in read_bars().get(name, ()):
        assert {bar.case, bar.than_case or bar.case}.issubset(cases)
        assert {bar.contestant, *bar.others}.issubset(module.CONTESTANTS)
        assert (bar.least, bar.most) != (None, None)
    others = {one for one in module.CONTESTANTS if not one.startswith("limit")} - {"remora"}
    assert set(module.FASTER) >= others
    assert "remora" in {one for *_, one in planned([name], [], options(smoke=True))}


def test_curves() -> None:
    """S4.31: what has a figure at two sizes is a curve, by its first size; counts are none."""
    found = results()
    keep(
        found,
        Case("load", "64", {"messages": 64}),
        0,
        "adk",
        {"figures": {"p50_us": 7.0, "errors": 2.0}},
    )
    assert curves(found, "load") == {("p50_us", "messages"): {"remora": [(20, 10.0), (64, 120.0)]}}
    keep(
        found,
        Case("load", "64 others", {"messages": 64}),
        0,
        "remora",
        {"figures": {"p50_us": 7.0}},
    )
    assert curves(found, "load") == {}, "two cases of one size differ in something else"
    assert curves(found, "append") == {}


def test_windows() -> None:
    """S4.31: the newest messages that fit, counted before or now."""
    messages = [(str(n), 1_500) for n in range(5)]
    assert within(messages) == ["3", "4"]
    assert counted([str(n) for n in range(5)], str, lambda _: BUDGET // 2) == ["3", "4"]
    assert within([]) == []


def test_texts_differ_and_repeat() -> None:
    """S4.31: the same seed gives the same messages, hardly one twice, each of the size that was
    asked for.
    """
    found = texts(3, 500)
    assert found == texts(3, 500)
    assert found != texts(4, 500)
    assert len(set(texts(3, 5_000))) > 4_900
    assert {len(text.encode()) for text in found} <= {298, 299, 300}
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
