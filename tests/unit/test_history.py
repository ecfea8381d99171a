"""The checker: what it must refuse, what it must let pass, and how it tells."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from remora import BufferPolicy, Line, Receipt
from remora.errors import CommitFailed
from remora.testing import (
    Operation,
    UnionSummarizer,
    covered_by,
    explain,
    linearizable,
)
from tests.checker.history import Shown
from tests.checker.judging import check
from tests.checker.programs import Kind
from tests.checker.scripted import Script, found
from tests.checker.strategies import small_histories
from tests.harness import COUNTER

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


HISTORIES = """
appends beside each other, a fold, a clear, a retried key
    append 1 2; at-once 4 3 key=k; load m0.2.0 m0.1.0 covered=m0.0.0,m0.0.1; clear 2
    append 3 key=k says=m0.2.0 duplicate=yes; append 5; load m0.6.0
    told 1=m0.0.0 2=m0.0.1 3=m0.2.0 4=m0.1.0 5=m0.6.0
an acknowledged message is gone
    append 1 | told -> G2 G3 G4
a message is there twice
    append 1 | load m0.0.0 m0.0.0 -> G2, G2 G3 G4
a retried key had a second effect
    append 1 key=k | append 2 key=k says=m0.0.0 -> G2 G3 G4
a refused key was no repetition
    append 1 key=k; conflict user; told 1=m0.0.0 | append 1 key=k duplicate=yes -> G2 G3 G4
a repetition was refused
    append 1 key=k | conflict user says=m0.0.0 -> G2 G3 G4
receipts in another order than the messages
    | append 2; append 1 -> G2 G3 G4
messages in another order than the receipts
    append 1; append 2 | load m0.1.0 m0.0.0 -> G2 G3 G4
a load misses what was acknowledged before it
    append 1; append 2 | load m0.0.0 -> G2 G3 G4, G3 G6
neither a folded message nor a summary of it
    append 1 2 3 | load m0.0.2 -> G2 G3 G4, G3 G6
a summary of a part
    append 1 2 3 | load m0.0.2 covered=m0.0.0 -> G2 G3 G4, G3 G6
a crash undid what an answered load showed
    begin user; load m0.0.0; crash | told -> G2 G3 G4
what had not happened before a crash happened after it
    begin user; crash; load | load m0.0.0 -> G2 G3 G4
one of two messages of an append that nobody acknowledged
    begin user user; crash | told 1=m0.0.0 -> G2 G3 G4
what was under way at a crash is wholly there, and its retry knows
    append 1; begin user user key=k; crash; load m0.0.0 m0.1.0 m0.1.1
    append 2 3 key=k says=m0.1.0,m0.1.1 duplicate=yes; told 1=m0.0.0 2=m0.1.0 3=m0.1.1
or wholly absent
    append 1; begin user user key=k; crash; load m0.0.0
    append 2 3 key=k says=m0.1.0,m0.1.1; told 1=m0.0.0 2=m0.1.0 3=m0.1.1
until its process dies, an append of unknown outcome may happen
    unknown; load; load m0.0.0
a refused append happened
    refused | load m0.0.0 -> G2 G3 G4
a clear lost a key
    append 1 key=k; clear 1 | append 2 key=k -> G2 G3 G4
a fold from before a clear was applied after it
    append 1 2; clear 2 | load covered=m0.0.0,m0.0.1 -> G2 G3 G4
a clear took out more than there was
    append 1 | clear 2 -> G2 G3 G4
a call without its result
    append 1 2 shapes=call,result | load m0.0.0 split=1 -> G8, G2 G3 G4
a result that does not follow its call
    append 1 2 3 shapes=call,user,result; load m0.0.0 m0.0.2 m0.0.1
    | load m0.0.0 m0.0.1 m0.0.2 -> G2 G3 G4
a call that waits for its result is not named
    append 1 2 shapes=user,call; load m0.0.0 awaiting=call-m0.0.1-0 | load m0.0.0 -> G2 G3 G4
a summary ends between a call and the result that came at once after it
    append 1 2 shapes=call,result; append 3; load m0.1.0 covered=m0.0.0,m0.0.1
    | load m0.1.0 covered=m0.0.0 -> G2 G3 G4
more tokens than were allowed
    append 1 | load m0.0.0 budget=5 tokens=6 -> G9
more tokens than it says
    append 1 | load m0.0.0 budget=5 tokens=5 counted=6 -> G9
a budget left out the newest
    append 1 2 3; load m0.0.2 budget=5 tokens=5; load m0.0.0 m0.0.2 budget=5 tokens=5
    | load m0.0.0 budget=5 tokens=5 -> G2 G3 G4
what was said in another session
    append 1 session=other | load m0.0.0 -> G1, G2 G3 G4
a summary of what nobody said
    append 1 | load m0.0.0 told=m9.9.9 -> G1
a deletion, and a rewind to before a clear, which undoes it
    append 1 2; clear 2; append 3; delete 3 m0.2.0 1; append 4; load m0.4.0; rewind 3 refused
    rewind 1 3; load m0.0.0; told 1=m0.0.0; append 5 | load m0.4.0 m0.9.0 -> G1, G2 G3 G4, G3 G6
what was forgotten comes back: numbers and keys had begun anew
    append 1 key=k; forget_session; append 1 key=k | load m0.0.0 m0.2.0 -> G2 G3 G4
what was said before a user was forgotten is found
    append 1; forget_user session=; append 1; recall m0.2.0 session= | recall m0.0.0 session= -> G13
an extract does not show the end of what was said
    append 1 2 3; extract m0.0.2 | extract m0.0.1 -> G2 G3 G4
"""


def perform(script: Script, step: str) -> None:
    """One step of `HISTORIES`: a verb, messages or numbers, and options."""
    verb, *rest = step.split()
    given = [one for one in rest if "=" not in one]
    texts = dict(one.split("=") for one in rest if "=" in one)
    options: dict[str, Any] = {
        name: text.split(",") if name in {"covered", "shapes", "awaiting", "told"} else text
        for name, text in texts.items()
        if name in {"covered", "shapes", "awaiting", "told", "key", "session"}
    }
    for name in {"budget", "tokens", "counted", "split", "pending"} & texts.keys():
        options[name] = int(texts[name])
    if "says" in texts:
        options["messages"] = [script.history.messages[name] for name in texts["says"].split(",")]
        options["shapes"] = ["user"] * len(options["messages"])

    def answer(kind: Kind, result: Any, argument: Any = None) -> None:
        script.end(script.begin(kind, argument=argument, **options), result)

    match verb:
        case "append":
            script.append(*map(int, given), duplicate="duplicate" in texts, **options)
        case "at-once":  # the one that began later has the key, and comes first
            one, other = script.begin("append", "user"), script.begin("append", "user", **options)
            script.end(other, Receipt((int(given[1]),), (given[1],)))
            script.end(one, Receipt((int(given[0]),), (given[0],)))
        case "begin":
            script.begin("append", *given, **options)
        case "conflict":
            record = script.begin("append", *given, key="k", messages=options.get("messages"))
            script.end(record, Receipt((), (), duplicate=True))
        case "unknown":
            script.history.unknown(script.begin("append", "user"), "it took too long")
        case "refused":
            script.history.nothing(script.begin("append", "user"), CommitFailed("no room"))
        case "crash":
            script.history.crashed()
        case "load":
            script.load(*given, **options)
        case "extract":
            answer("load", Shown(None, True, None, tuple(given), 1, 1, 0, (), 0))
        case "told":
            script.told(*((int(seq), name) for seq, name in texts.items()))
        case "messages":
            answer("messages", tuple(given))
        case "clear":
            script.clear(int(given[0]))
        case "flush":
            answer("flush", int(given[0]))
        case "delete":
            answer("delete", int(given[2]), (int(given[0]), given[1]))
        case "rewind":
            result = given[1] if given[1] == "refused" else int(given[1])
            answer("rewind", result, int(given[0]))
        case "recall":
            answer("recall", frozenset(given))
        case "forget_session":
            answer("forget_session", None)
        case "forget_user":
            answer("forget_user", None)
        case _:
            raise AssertionError(step)


def judge(told: str, make: Callable[[], Any], judged: Callable[[Any], set[str]]) -> None:
    """Each history of a text is right until its bar, and then wrong in the way that it names."""
    for what, text in re.findall(r"^(\S.*)\n((?: .*\n)+)", told, re.MULTILINE):
        script = make()
        steps, _, expected = re.sub(r"\n +(?!\|)", "; ", text.strip()).partition(" -> ")
        right, _, wrong = re.sub(r"\s+", " ", steps).partition("|")
        for part, guarantees in ((right, set()), (wrong, {*expected.split(", ")})):
            for step in filter(str.strip, part.split(";")):
                perform(script, step)
            if part:
                assert judged(script) == guarantees, what


def test_histories() -> None:
    """G1, G2, G3, G4, G5, G6, G8, G9, G10, G11, G13, S1.14: a history is found right until what is
    wrong with it happens, and then it is named.
    """
    judge(HISTORIES, Script, found)


def test_exception_of_no_kind() -> None:
    """G11: whatever a call raises is one of remora's own."""
    script = Script()
    script.history.wrong(script.begin("append", "user"), KeyError("seq"))
    (violation,) = check(script.history)
    assert violation.guarantee == "G11"
    assert "KeyError" in violation.text


# -- what a policy keeps ---------------------------------------------------------------------------

SIX = BufferPolicy(above_messages=6, keep_messages=3)
NAMES = tuple(f"m0.0.{place}" for place in range(9))
OF_SIX = """
where no fold can have taken a message it is there to be deleted
    delete 1 m0.0.0 1 | delete 2 m0.0.1 0 -> G2 G3 G4
a clear takes out all that was said
    clear 6
and what was said last in any case
    clear 6 | append 7; clear 0 -> G2 G3 G4
the buffer is shown, all of it
    messages m0.0.0 m0.0.1 m0.0.2 m0.0.3 m0.0.4 m0.0.5 | messages m0.0.5 -> G2 G3 G4
nothing is pending before a fold
    load m0.0.0 m0.0.1 m0.0.2 m0.0.3 m0.0.4 m0.0.5 pending=0
    | load m0.0.0 m0.0.1 m0.0.2 m0.0.3 m0.0.4 m0.0.5 pending=3 -> G2 G3 G4
what a flush handed over is not counted by the next one
    flush 6; append 7; flush 1 | flush 1 -> G2 G3 G4
"""
OF_SEVEN = """
what a fold took can be deleted, and so can the newest
    load m0.0.4 m0.0.5 m0.0.6 covered=m0.0.0,m0.0.1,m0.0.2,m0.0.3
    delete 2 m0.0.1 1; delete 7 m0.0.6 1; load m0.0.4 m0.0.5
and is not passed over
    load m0.0.4 m0.0.5 m0.0.6 covered=m0.0.0,m0.0.1,m0.0.2,m0.0.3 | delete 2 m0.0.1 0 -> G2 G3 G4
a clear takes out what was not folded
    clear 3
and what was said last in any case
    load m0.0.4 m0.0.5 m0.0.6 covered=m0.0.0,m0.0.1,m0.0.2,m0.0.3 | clear 0 -> G2 G3 G4
the buffer is shown without what was folded
    messages m0.0.4 m0.0.5 m0.0.6; load m0.0.4 m0.0.5 m0.0.6 covered=m0.0.0,m0.0.1,m0.0.2,m0.0.3
a part of it is shown
    | messages m0.0.6; load m0.0.4 m0.0.5 m0.0.6 covered=m0.0.0,m0.0.1,m0.0.2,m0.0.3 -> G2 G3 G4
nothing of it is shown
    | messages -> G2 G3 G4
all that a fold took and no summary covers is pending
    load m0.0.0 m0.0.1 m0.0.2 m0.0.3 m0.0.4 m0.0.5 m0.0.6 pending=4
    | load m0.0.0 m0.0.1 m0.0.2 m0.0.3 m0.0.4 m0.0.5 m0.0.6 pending=3 -> G2 G3 G4
and not nothing
    load m0.0.0 m0.0.1 m0.0.2 m0.0.3 m0.0.4 m0.0.5 m0.0.6 pending=4
    | load m0.0.0 m0.0.1 m0.0.2 m0.0.3 m0.0.4 m0.0.5 m0.0.6 pending=0 -> G2 G3 G4
"""


class Weighed(Script):
    """Every message of it weighs a token, and so does what else is short."""

    def __init__(self, count: int, policy: BufferPolicy = SIX) -> None:
        super().__init__()
        self.policy = policy
        self.history.counter = COUNTER
        self.append(*range(1, count + 1))

    def found(self, *, sound_models: bool = True) -> set[str]:
        return {
            violation.guarantee
            for violation in check(self.history, policy=self.policy, sound_models=sound_models)
        }


def test_what_a_policy_keeps() -> None:
    """S0.13, S1.14, S4.12, G6, G7, G9: deletions, clears, buffers, flushes and budgets are
    judged by what the policy had folded.
    """
    judge(OF_SIX, lambda: Weighed(6), Weighed.found)
    judge(OF_SEVEN, lambda: Weighed(7), Weighed.found)
    script = Weighed(7)
    script.load(*NAMES[4:7], covered=NAMES[:4])
    script.load(*NAMES[1:7], covered=NAMES[:1])
    assert script.found(sound_models=False) == {"G2 G3 G4"}, "what left the buffer does not return"


def test_extracts() -> None:
    """G6: an extract stands in the place of a summary only where the model failed or the overdraft
    was reached, and what it leaves out is in the range that is called degraded.
    """
    rows: tuple[tuple[int, tuple[int, int, int] | None, tuple[str, ...], set[str]], ...] = (
        (100, (1, 4, 4), (), {"G6"}),
        (5, (1, 4, 4), (), set()),
        (5, (1, 4, 2), NAMES[:1], {"G6"}),
        (5, None, NAMES[:4], set()),
        (5, (2, 3, 2), (NAMES[0], NAMES[3]), set()),
        (5, (2, 3, 2), NAMES[:1], {"G3 G6"}),
        (5, None, (), {"G3 G6"}),
    )
    for overdraft, degraded, told, guarantees in rows:
        script = Weighed(7, msgspec.structs.replace(SIX, overdraft_tokens=overdraft))
        shown = Shown(None, True, None, NAMES[4:7], 1, 1, 0, (), 0, frozenset(told), degraded)
        script.end(script.begin("load"), shown)
        assert script.found() == guarantees, (overdraft, degraded, told)
        assert not told or degraded or script.found(sound_models=False) == set()
    script = Weighed(7, msgspec.structs.replace(SIX, overdraft_tokens=100))
    shown = Shown(None, True, None, NAMES[4:7], 1, 1, 0, (), 0, degraded=(1, 4, 4))
    script.end(script.begin("load"), shown)
    assert script.found(sound_models=False) == set()


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
