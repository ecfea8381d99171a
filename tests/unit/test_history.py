"""The checker: what it must refuse, what it must let pass, and how it tells."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings

from remora.errors import CommitFailed
from remora.messages import Receipt
from remora.models.ports import Line
from remora.testing import (
    Operation,
    UnionSummarizer,
    covered_by,
    explain,
    linearizable,
)
from tests.checker.history import Shown
from tests.checker.judging import check
from tests.scripted import Script, found
from tests.strategies import small_histories

FOREVER = float("inf")


# -- the search ------------------------------------------------------------------------------------


def counts(total: int, operation: Operation) -> int | None:
    after = total + (operation.kind == "add")
    return after if operation.result in {None, after} else None


def explained_by_trying_all(operations: Sequence[Operation]) -> bool:
    """Every choice of what happened, in every order."""
    unknown = [one for one in operations if one.pending]
    known = [one for one in operations if not one.pending]
    for happened in itertools.product([False, True], repeat=len(unknown)):
        chosen = known + [one for one, did in zip(unknown, happened, strict=True) if did]
        for order in itertools.permutations(chosen):
            if any(
                later.returned < earlier.called
                for earlier, later in itertools.combinations(order, 2)
            ):
                continue
            total: int | None = 0
            for one in order:
                total = None if total is None else counts(total, one)
            if total is not None:
                return True
    return False


@settings(max_examples=300)
@given(small_histories(size=5))
def test_search_is_exhaustive(operations: list[Operation]) -> None:
    """G2: an order is found exactly where trying every order, and every fate of what nobody knows,
    finds one.
    """
    assert (linearizable(operations, 0, counts) is not None) == explained_by_trying_all(operations)


@given(small_histories(size=8))
def test_order_is_one(operations: list[Operation]) -> None:
    """G2: the order that is given is true to real time, has every operation that is known to have
    happened, and explains it.
    """
    found = explain(operations, 0, counts)
    total: int | None = 0
    for earlier, later in itertools.combinations(found.order, 2):
        assert not later.returned < earlier.called
    for one in found.order:
        assert total is not None
        total = counts(total, one)
    assert total is not None
    if found.complete:
        assert {id(one) for one in operations if not one.pending} <= {
            id(one) for one in found.order
        }
    else:
        assert found.stuck


def test_what_died_happened_before_or_never() -> None:
    """G4: an operation whose process died counts before its death or not at all; one that may still
    happen, at any time.
    """
    add, get = Operation(1, 3, "add", None, None, unknown=True), Operation(4, 5, "get", None, 0)
    seen = Operation(6, 7, "get", None, 1)
    assert linearizable([add, get], 0, counts) is not None
    assert linearizable([add, seen], 0, counts) is not None
    assert linearizable([add, get, seen], 0, counts) is None
    still = Operation(1, FOREVER, "add", None, None)
    assert linearizable([still, get, seen], 0, counts) is not None


def test_bounded_search_says_so() -> None:
    """G2: a search that was cut short claims nothing."""
    operations = [Operation(0, FOREVER, "add", None, None) for _ in range(12)] + [
        Operation(1, 2, "get", None, 99)
    ]
    found = explain(operations, 0, counts, most=5)
    assert (found.complete, found.decided) == (False, False)
    assert explain(operations, 0, counts).decided


def test_good_history() -> None:
    """G2, G3, G6: appends beside each other, a fold, a clear, a retried key."""
    script = Script()
    script.append(1, 2)
    one, other = script.begin("append", "user"), script.begin("append", "user", key="k")
    script.end(other, Receipt((3,), ("3",)))
    script.end(one, Receipt((4,), ("4",)))
    script.load("m0.2.0", "m0.1.0", covered=["m0.0.0", "m0.0.1"])
    script.clear(2)
    said = [script.history.messages[name] for name in other.argument]
    script.append(3, key="k", messages=said, duplicate=True)
    script.append(5)
    script.load("m0.6.0")
    script.told((1, "m0.0.0"), (2, "m0.0.1"), (3, "m0.2.0"), (4, "m0.1.0"), (5, "m0.6.0"))
    assert check(script.history) == []


def test_lost_append() -> None:
    """G2, G3: an acknowledged message that is gone."""
    script = Script()
    script.append(1)
    script.told()
    assert "G2 G3 G4" in found(script)


def test_doubled_append() -> None:
    """G2, G4: a message that is there twice, and a retried key that had a second effect."""
    script = Script()
    script.append(1)
    script.load("m0.0.0", "m0.0.0")
    assert "G2" in found(script)
    script = Script()
    first = script.append(1, key="k")
    said = [script.history.messages[name] for name in first.argument]
    script.append(2, key="k", messages=said)
    assert "G2 G3 G4" in found(script)


def test_conflicting_keys() -> None:
    """G4: other messages under a key are refused; they are no repetition, and not appended."""
    refused = Receipt((), (), duplicate=True)
    script = Script()
    script.append(1, key="k")
    script.end(script.begin("append", "user", key="k"), refused)
    script.told((1, "m0.0.0"))
    assert check(script.history) == []
    script.append(1, key="k", duplicate=True)
    assert "G2 G3 G4" in found(script)
    script = Script()
    first = script.append(1, key="k")
    said = [script.history.messages[name] for name in first.argument]
    script.end(script.begin("append", "user", key="k", messages=said), refused)
    assert "G2 G3 G4" in found(script)


def test_reordered_appends() -> None:
    """G2: a sender's messages in another order than they were sent."""
    script = Script()
    script.append(2)
    script.append(1)
    assert "G2 G3 G4" in found(script)
    script = Script()
    script.append(1)
    script.append(2)
    script.load("m0.1.0", "m0.0.0")
    assert "G2 G3 G4" in found(script)


def test_stale_read() -> None:
    """G2, G6: a load that misses what was acknowledged before it."""
    script = Script()
    script.append(1)
    script.append(2)
    script.load("m0.0.0")
    assert found(script) == {"G2 G3 G4", "G3 G6"}


def test_pending_left_out() -> None:
    """G6: a load that shows neither a folded message nor a summary that covers it."""
    script = Script()
    script.append(1, 2, 3)
    script.load("m0.0.2")
    assert found(script) == {"G2 G3 G4", "G3 G6"}
    script = Script()
    script.append(1, 2, 3)
    script.load("m0.0.2", covered=["m0.0.0"])
    assert found(script) == {"G2 G3 G4", "G3 G6"}


def test_read_that_a_crash_undid() -> None:
    """G3: a load showed an append that nobody acknowledged; after the crash it is gone, although
    the load was answered.
    """
    script = Script()
    script.begin("append", "user")
    script.load("m0.0.0")
    script.history.crashed()
    script.told()
    assert "G2 G3 G4" in found(script)


def test_late_comer_after_a_crash() -> None:
    """G4: what had not happened before the crash does not happen after it."""
    script = Script()
    script.begin("append", "user")
    script.history.crashed()
    script.load()
    script.load("m0.0.0")
    assert "G2 G3 G4" in found(script)


def test_half_a_batch() -> None:
    """G4: one of two messages of an append that nobody acknowledged."""
    script = Script()
    script.begin("append", "user", "user")
    script.history.crashed()
    script.told((1, "m0.0.0"))
    assert "G2 G3 G4" in found(script)


@pytest.mark.parametrize("there", [True, False])
def test_crash_decides(there: bool) -> None:
    """G4: what was under way is wholly there or wholly absent, and its retry under the same key
    knows.
    """
    script = Script()
    script.append(1)
    script.begin("append", "user", "user", key="k")
    script.history.crashed()
    script.load(*(["m0.0.0", "m0.1.0", "m0.1.1"] if there else ["m0.0.0"]))
    messages = [script.history.messages[name] for name in ("m0.1.0", "m0.1.1")]
    script.append(2, 3, shapes=["user", "user"], key="k", duplicate=there, messages=messages)
    script.told((1, "m0.0.0"), (2, "m0.1.0"), (3, "m0.1.1"))
    assert check(script.history) == []


def test_timed_out_append_may_still_happen() -> None:
    """G2: until its process dies, an append of unknown outcome may happen at any time."""
    script = Script()
    late = script.begin("append", "user")
    script.history.unknown(late, "it took too long")
    script.load()
    script.load("m0.0.0")
    assert check(script.history) == []


def test_refused_append_does_not_happen() -> None:
    """G10, G11: what was refused had no effect."""
    script = Script()
    script.history.nothing(script.begin("append", "user"), CommitFailed("no room"))
    script.load("m0.0.0")
    assert "G2 G3 G4" in found(script)


def test_key_lost_on_clear() -> None:
    """G4, S1.14: a key outlives a clear."""
    script = Script()
    script.append(1, key="k")
    script.clear(1)
    script.append(2, key="k")
    assert "G2 G3 G4" in found(script)


def test_cleared_comes_back() -> None:
    """G5: a fold that was asked for before the clear is applied after it."""
    script = Script()
    script.append(1, 2)
    script.clear(2)
    script.load(covered=["m0.0.0", "m0.0.1"])
    assert "G2 G3 G4" in found(script)


def test_clear_counts_what_was_there() -> None:
    """S1.14: a clear cannot take out more than there was."""
    script = Script()
    script.append(1)
    script.clear(2)
    assert "G2 G3 G4" in found(script)


def test_split_tool_call() -> None:
    """G8: a call without its result, and a result that does not follow its call."""
    script = Script()
    script.append(1, 2, shapes=["call", "result"])
    script.load("m0.0.0", split=1)
    assert found(script) == {"G8", "G2 G3 G4"}
    script = Script()
    script.append(1, 2, 3, shapes=["call", "user", "result"])
    script.load("m0.0.0", "m0.0.2", "m0.0.1")
    assert check(script.history) == []
    script.load("m0.0.0", "m0.0.1", "m0.0.2")
    assert found(script) == {"G2 G3 G4"}


def test_waiting_call_is_withheld() -> None:
    """G8: a call without a result yet is not shown, and is named."""
    script = Script()
    script.append(1, 2, shapes=["user", "call"])
    script.load("m0.0.0", awaiting=["call-m0.0.1-0"])
    assert check(script.history) == []
    script.load("m0.0.0")
    assert found(script) == {"G2 G3 G4"}


def test_over_budget() -> None:
    """G9: more tokens than were allowed, or than it says."""
    script = Script()
    script.append(1)
    script.load("m0.0.0", budget=5, tokens=6)
    assert found(script) == {"G9"}
    script = Script()
    script.append(1)
    script.load("m0.0.0", budget=5, tokens=5, counted=6)
    assert found(script) == {"G9"}


def test_budget_leaves_out_the_oldest() -> None:
    """G9: within a budget the newest are shown, and whatever of the summaries fits."""
    script = Script()
    script.append(1, 2, 3)
    script.load("m0.0.2", budget=5, tokens=5)
    script.load("m0.0.2", covered=["m0.0.0"], budget=5, tokens=5)
    assert check(script.history) == []
    script.load("m0.0.0", budget=5, tokens=5)
    assert found(script) == {"G2 G3 G4"}


def test_another_sessions_message() -> None:
    """G1: what was said in one session is shown in another."""
    script = Script()
    script.append(1, session="other")
    script.load("m0.0.0")
    assert "G1" in found(script)
    script = Script()
    script.append(1)
    script.load("m0.0.0", told=["m9.9.9"])
    assert found(script) == {"G1"}


def test_delete_and_rewind() -> None:
    """G2: what was deleted or rewound is gone from everything, and a rewind to before a clear
    undoes it.
    """
    script = Script()
    script.append(1, 2)
    script.clear(2)
    script.append(3)
    script.end(script.begin("delete", argument=(3, "m0.2.0")), 1)
    script.append(4)
    script.load("m0.4.0")
    script.end(script.begin("rewind", argument=3), "refused")
    script.end(script.begin("rewind", argument=1), 3)
    script.load("m0.0.0")
    script.told((1, "m0.0.0"))
    script.append(5)
    assert check(script.history) == []
    script.load("m0.4.0", "m0.9.0")
    assert "G2 G3 G4" in found(script)


def test_forgotten_begins_anew() -> None:
    """G13: after `forget` nothing is known, keys included, and numbers begin at one."""
    script = Script()
    script.append(1, key="k")
    script.end(script.begin("forget_session"), None)
    script.append(1, key="k")
    assert check(script.history) == []
    script.load("m0.0.0", "m0.2.0")
    assert "G2 G3 G4" in found(script)


def test_exception_of_no_kind() -> None:
    """G11: whatever a call raises is one of remora's own."""
    script = Script()
    script.history.wrong(script.begin("append", "user"), KeyError("seq"))
    (violation,) = check(script.history)
    assert violation.guarantee == "G11"
    assert "KeyError" in violation.text


def test_degraded_summary_is_judged_by_what_is_shown() -> None:
    """G6: where a summary is an extract, what is shown must still be the end of what was said."""
    script = Script()
    script.append(1, 2, 3)
    extract = Shown(None, True, None, ("m0.0.2",), 1, 1, 0, (), 0)
    script.end(script.begin("load"), extract)
    assert check(script.history) == []
    script.end(script.begin("load"), Shown(None, True, None, ("m0.0.1",), 1, 1, 0, (), 0))
    assert found(script) == {"G2 G3 G4"}


# -- summaries -------------------------------------------------------------------------------------


async def _summary(previous: str | None, *names: str) -> str:
    return await UnionSummarizer().summarize(
        previous, [Line("user", "User", f"{name} hello", 0) for name in names], max_tokens=99
    )


@pytest.mark.anyio
async def test_union_summarizer() -> None:
    """G6: a summary names what it covers; one that was cut short, or was built on another's, does
    not pass for whole.
    """
    first = await _summary(None, "m0.0.0", "m0.0.1")
    assert covered_by(first) == ("m0.0.0", "m0.0.1")
    assert covered_by(await _summary(first, "m0.1.0")) == ("m0.0.0", "m0.0.1", "m0.1.0")
    assert covered_by(f"{first}\n{first}") == ("m0.0.0", "m0.0.1") * 2
    assert covered_by(first[:-3]) is None
    assert covered_by(first.replace("m0.0.1 ", "")) is None
    partly = await _summary("m0.0.0 said hello", "m0.1.0")
    assert covered_by(partly) is None
    assert covered_by(await _summary(partly, "m0.2.0")) is None
