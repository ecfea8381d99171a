"""What each program shows, as rows of the table: a label, and the words for a subject's figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.lab.correctness.peers import Peer
from benchmarks.lab.correctness.programs import FULL, Sizes

__all__ = ["Cell", "Claim", "Figures", "claims"]


class Figures:
    """The figures of one program and one subject, over all runs."""

    def __init__(self, runs: Sequence[Mapping[str, Any]]) -> None:
        self._runs = runs

    def __contains__(self, key: str) -> bool:
        return any(key in run for run in self._runs)

    def __getitem__(self, key: str) -> str:
        """As a number, or from the least to the most."""
        values = sorted(run[key] for run in self._runs if key in run)
        least, most = _number(values[0]), _number(values[-1])
        return least if least == most else f"{least} to {most}"

    def most(self, key: str) -> float:
        """The largest."""
        return max((float(run[key]) for run in self._runs if key in run), default=0.0)

    def text(self, key: str) -> str:
        """The different names in lists of them."""
        return ", ".join(
            sorted(
                {name for run in self._runs if run.get(key) for name in str(run[key]).split(", ")}
            )
        )

    def share(self, part: str, whole: str) -> str:
        """In per cent, from the least to the most."""
        shares = sorted(round(100 * run[part] / run[whole]) for run in self._runs if run.get(whole))
        return f"{shares[0]} %" if shares[0] == shares[-1] else f"{shares[0]} to {shares[-1]} %"


def _number(value: float) -> str:
    return (
        f"{value:,.0f}".replace(",", " ")
        if float(value).is_integer() or value >= 100
        else f"{value:.1f}"
    )


@dataclass(frozen=True)
class Cell:
    """What stands in the table.

    Attributes:
        text: the words.
        flawless: nothing of what the row looks for was found.
        judged: the row looks for a fault, and applies.
    """

    text: str
    flawless: bool = False
    judged: bool = True


@dataclass(frozen=True)
class Claim:
    """One program's part of the table: a heading, and rows, each with its label, a figure it needs,
    and its words.
    """

    program: str
    title: str
    rows: tuple[tuple[str, str, Callable[[Figures, Peer], Cell]], ...]


def _faults(found: Sequence[str], otherwise: str) -> Cell:
    return Cell("; ".join(found)) if found else Cell(otherwise, flawless=True)


def _kept(figures: Figures, lost: str, kept: str, peer: Peer) -> str:
    if not figures.most(kept):
        return ""
    return f" ({'all' if figures[kept] == figures[lost] else figures[kept]} still {peer.kept_in})"


def _appended(callers: int) -> Callable[[Figures, Peer], Cell]:
    def cell(figures: Figures, peer: Peer) -> Cell:
        def of(name: str) -> str:
            return f"{callers}.{name}"

        found = []
        if figures.most(of("lost")):
            kept = _kept(figures, of("lost"), of("kept"), peer)
            found.append(f"{figures[of('lost')]} of {figures[of('acknowledged')]} lost{kept}")
        if figures.most(of("rejected")):
            found.append(
                f"{figures[of('rejected')]} of {figures[of('sent')]} refused "
                f"({figures.text(of('errors'))})"
            )
        if figures.most(of("refused_there")):
            found.append(f"{figures[of('refused_there')]} refused, yet there")
        if figures.most(of("doubled")):
            found.append(f"{figures[of('doubled')]} doubled")
        if figures.most(of("reordered")):
            found.append(f"{figures[of('reordered')]} out of order")
        return _faults(found, f"all {figures[of('sent')]}, in order")

    return cell


def _delivered(case: str) -> Callable[[Figures, Peer], Cell]:
    def cell(figures: Figures, _: Peer) -> Cell:
        found = []
        if figures.most(f"{case}.never"):
            found.append(f"{figures[f'{case}.never']} of {figures[f'{case}.left']} never")
        if figures.most(f"{case}.more"):
            found.append(f"{figures[f'{case}.more']} of {figures[f'{case}.left']} more than once")
        if figures.most(f"{case}.rejected"):
            found.append(
                f"raised: {figures[f'{case}.rejected']} of {figures[f'{case}.sent']} appends"
            )
        return _faults(found, f"each of {figures[f'{case}.left']} once")

    return cell


def _outage(limit: int) -> Callable[[Figures, Peer], Cell]:
    def cell(figures: Figures, peer: Peer) -> Cell:
        def of(name: str) -> str:
            return f"{limit}.{name}"

        found = [
            (
                f"{figures[of('lost')]} of "
                f"{figures[of('acknowledged')]}{_kept(figures, of('lost'), of('kept'), peer)}"
            )
        ]
        if figures.most(of("rejected")):
            there = f"{figures[of('refused_there')]} of these there all the same"
            found.append(
                f"{figures[of('rejected')]} of {figures[of('sent')]} appends raised, {there}"
            )
        return Cell(
            "; ".join(found),
            flawless=not figures.most(of("lost")) and not figures.most(of("rejected")),
        )

    return cell


def _flooded(limit: int) -> Callable[[Figures, Peer], Cell]:
    def cell(figures: Figures, peer: Peer) -> Cell:
        lost, acknowledged, rejected = f"{limit}.lost", f"{limit}.acknowledged", f"{limit}.rejected"
        found = [
            (
                f"{figures[lost]} of "
                f"{figures[acknowledged]}{_kept(figures, lost, f'{limit}.kept', peer)}"
            )
        ]
        if figures.most(rejected):
            found.append(f"{figures[rejected]} refused")
        return Cell(
            "; ".join(found), flawless=not figures.most(lost) and not figures.most(rejected)
        )

    return cell


def _lacking(part: str, whole: str) -> Callable[[Figures, Peer], Cell]:
    def cell(figures: Figures, _: Peer) -> Cell:
        if not figures.most(whole):
            return Cell("no load came in between")
        return Cell(
            f"{figures.share(part, whole)} of {figures[whole]}", flawless=not figures.most(part)
        )

    return cell


def _cancelled(*names: str) -> Callable[[Figures, Peer], Cell]:
    def cell(figures: Figures, _: Peer) -> Cell:
        if not figures.most("reached"):
            return Cell("*n/a*: an append never yields", judged=False)
        found = [
            f"{figures[name]} of {figures['reached']}{f' {name}' if len(names) > 1 else ''}"
            for name in names
            if figures.most(name)
        ]
        return _faults(found, f"0 of {figures['reached']}")

    return cell


def _applied(figures: Figures, _: Peer) -> Cell:
    return Cell(
        f"{figures['applied']} of {figures['reached']}"
        if figures.most("reached")
        else "*n/a*: an append never yields",
        judged=False,
    )


def _cancelled_summary(figures: Figures, peer: Peer) -> Cell:
    lost, kept = "summary.lost", "summary.kept"
    text = f"{figures[lost]} of {figures['summary.acknowledged']}{_kept(figures, lost, kept, peer)}"
    return Cell(text, flawless=not figures.most(lost))


def _waited(name: str) -> Callable[[Figures, Peer], Cell]:
    def cell(figures: Figures, _: Peer) -> Cell:
        error = figures.text(f"{name}.error")
        text = f"{figures[f'{name}_ms']} ms" + (f", raises {error}" if error else "")
        return Cell(text, flawless=figures.most(f"{name}_ms") < 100 and not error)

    return cell


def _copies(case: str) -> Callable[[Figures, Peer], Cell]:
    def cell(figures: Figures, _: Peer) -> Cell:
        errors = figures.text(f"{case}.errors")
        if "survives" in figures.text(case):
            return Cell(figures.text(case))
        text = f"{figures[case]} {'copy' if figures[case] == '1' else 'copies'}" + (
            f", raises {errors}" if errors else ""
        )
        return Cell(text, flawless=figures[case] == "1" and not errors)

    return cell


def _in_files(figures: Figures, _: Peer) -> Cell:
    text = f"{figures['in_files']} of {figures['said']}"
    if figures.most("others_lost"):
        text += f"; {figures['others_lost']} of another user's gone as well"
    return Cell(text, flawless=not figures.most("in_files") and not figures.most("others_lost"))


def _given_back(figures: Figures, _: Peer) -> Cell:
    found = [f"{figures['readable']} in the sessions"] if figures.most("readable") else []
    if figures.most("rows"):
        found.append(f"{figures['rows']} of {figures['said']} in long-term memory")
    return _faults(found, f"0 of {figures['said']}")


def _leaked(case: str) -> Callable[[Figures, Peer], Cell]:
    def cell(figures: Figures, _: Peer) -> Cell:
        text = f"{figures[f'{case}.leaked']} of {figures[f'{case}.asked']} contexts"
        if not figures.most(f"{case}.own"):
            text += ", and never in the owner's own"
        return Cell(text, flawless=not figures.most(f"{case}.leaked"))

    return cell


def _descriptors(figures: Figures, _: Peer) -> Cell:
    text = f"+{figures['descriptors']}, threads +{figures['threads']}"
    return Cell(text, flawless=figures.most("descriptors") < 10 and figures.most("threads") < 10)


def claims(sizes: Sizes = FULL) -> tuple[Claim, ...]:
    """The rows, for programs of this size."""
    writers, each = sizes.flood
    return (
        Claim(
            "concurrent_appends",
            "Callers append to one session at once",
            tuple(
                (
                    f"{count} caller{'s' * (count > 1)}, {each_of} messages each",
                    f"{count}.sent",
                    _appended(count),
                )
                for count, each_of in sizes.callers
            ),
        ),
        Claim(
            "deliveries",
            f"Messages that leave the buffer go to long-term memory ({writers * each} messages)",
            (
                ("1 writer", "one.left", _delivered("one")),
                (f"{writers} writers", "many.left", _delivered("many")),
                (
                    f"{writers} writers, the embedder fails once",
                    "failing.left",
                    _delivered("failing"),
                ),
            ),
        ),
        Claim(
            "summarizer_raises",
            "The summarizer fails for a while: acknowledged messages in neither buffer nor summary",
            tuple(
                (
                    f"during {count} appends, buffer of {_number(limit)} tokens",
                    f"{limit}.acknowledged",
                    _outage(limit),
                )
                for limit, count in sizes.outage
            ),
        ),
        Claim(
            "overflow",
            f"{writers} writers overflow a session: acknowledged messages in neither buffer nor "
            "summary",
            tuple(
                (f"buffer of {_number(limit)} tokens", f"{limit}.lost", _flooded(limit))
                for limit in sizes.limits
            ),
        ),
        Claim(
            "loads_meanwhile",
            "Loads that lack a message acknowledged before them",
            (
                ("of the loads during a summary", "during", _lacking("missing_during", "during")),
                ("of all loads, one writer", "loads", _lacking("missing", "loads")),
            ),
        ),
        Claim(
            "cancelled_append",
            f"One append of four messages is cancelled, at {sizes.cancels} moments of its way",
            (
                ("the session was wiped", "reached", _cancelled("wiped")),
                (
                    "an acknowledged message was lost, wiped ones included",
                    "reached",
                    _cancelled("lost"),
                ),
                ("half of the append is there", "reached", _cancelled("half")),
                ("the next call hung or was refused", "reached", _cancelled("hung", "refused")),
                ("there, although cancelled (no fault)", "reached", _applied),
                ("cancelled while it summarizes: lost", "summary.lost", _cancelled_summary),
            ),
        ),
        Claim(
            "append_behind_summary",
            f"Waits behind a summarizer of {sizes.slow_s:g} s",
            (
                ("the append that causes the summary", "own_ms", _waited("own")),
                ("another append beside it", "beside_ms", _waited("beside")),
                ("a load beside it", "load_ms", _waited("load")),
            ),
        ),
        Claim(
            "same_key_twice",
            "The same request with the same key",
            (
                ("sent again", "again", _copies("again")),
                ("8 times at once", "together", _copies("together")),
                ("again after a restart", "restart", _copies("restart")),
            ),
        ),
        Claim(
            "left_on_disk",
            "A user's data after its deletion",
            (
                ("messages found in the files' bytes", "in_files", _in_files),
                ("messages that its calls still give", "readable", _given_back),
            ),
        ),
        Claim(
            "strangers_secret",
            "A user's secret in another's context",
            (
                ("one store for all users", "store.asked", _leaked("store")),
                (
                    "one object of long-term memory for all sessions",
                    "block.asked",
                    _leaked("block"),
                ),
            ),
        ),
        Claim(
            "open_sessions",
            f"{sizes.open} open sessions",
            (("descriptors", "descriptors", _descriptors),),
        ),
    )
