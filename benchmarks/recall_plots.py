"""Pictures of docs/evidence/recall.md, drawn from its data; part of `benchmarks.recall`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed.plots import missing

__all__ = ["DATA", "draw_plots", "missing"]

DATA = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "data" / "recall.json"
_SETS = {
    "LoCoMo": "now.locomo",
    "REALTALK": "now.realtalk",
    "BEAM": "now.beam",
    "BFCL": "now.bfcl",
    "MemoryAgentBench": "now.mab",
    "tau-bench airline": "now.tau",
    "desk, generated": "desk.desk",
    "chats, generated": "now.chats",
    "daily life, generated": "now.daily",
}
_DEPTHS = (1, 5, 10)
_CONTEXTS = {
    "LoCoMo": "rerank.without",
    "chats": "chats.remora",
    "chats, filled by BM25": "chats.bm25",
    "chats, newest messages": "chats.newest",
}
_BUDGETS = (1_000, 2_000, 4_000, 8_000)


def draw_plots(directory: Path, data: Path = DATA) -> list[Path]:
    """Draw recall by set, and the evidence in contexts by budget.

    Args:
        directory: where the SVG files are written.
        data: the figures, by id.

    Returns:
        The files.
    """
    import matplotlib as mpl  # noqa: PLC0415  # an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    figures: Mapping[str, Any] = json.loads(data.read_text(encoding="utf-8"))["figures"]

    def value(id_: str) -> float:
        return float(figures[id_]["value"])

    directory.mkdir(parents=True, exist_ok=True)
    # Without these two each drawing has other ids and a date of its own.
    with mpl.rc_context({"svg.hashsalt": "remora", "svg.fonttype": "none", "font.size": 8}):
        picture = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = picture.add_subplot()
        for place, depth in enumerate(_DEPTHS):
            axes.barh(
                [number + 0.27 * (place - 1) for number in range(len(_SETS))],
                [value(f"{id_}.r{depth}") for id_ in _SETS.values()],
                height=0.25,
                label=f"R@{depth}",
                color=f"C{place}",
            )
        axes.set(xlim=(0, 1), xlabel="share of the evidence that is found")
        axes.set_yticks(range(len(_SETS)), list(_SETS))
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x", linewidth=0.3)
        picture.legend(loc="outside right upper", frameon=False)
        by_set = directory / "recall-by-set.svg"
        picture.savefig(by_set, metadata={"Date": None})

        picture = Figure(figsize=(6.4, 3.0), layout="constrained")
        axes = picture.add_subplot()
        for label, id_ in _CONTEXTS.items():
            shares = [value(f"{id_}.{budget}") for budget in _BUDGETS]
            axes.plot(_BUDGETS, shares, label=label, marker="o", markersize=3)
        axes.set(xscale="log", ylim=(0, 1), xlabel="tokens of the context")
        axes.set_ylabel("questions with all evidence")
        axes.set_xticks(_BUDGETS, [f"{budget:,}" for budget in _BUDGETS])
        axes.set_xticks([], minor=True)
        axes.grid(visible=True, which="major", linewidth=0.3)
        picture.legend(loc="outside right upper", frameon=False)
        by_budget = directory / "recall-by-budget.svg"
        picture.savefig(by_budget, metadata={"Date": None})
    return [by_set, by_budget]
