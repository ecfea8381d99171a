"""A session as a sequential program: what each call may answer after the calls before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from remora import BufferPolicy, Receipt
from remora.testing import Operation
from tests.checker.history import (
    MessageShape,
    Shown,
    is_tool,
)

__all__ = ["Keeping", "Model", "SessionModel"]


class Model(NamedTuple):
    """A session as a sequential program.

    `said` has the name of each message by its number, the empty text for one that was removed;
    `cleared` is the last number that was cleared away; `keys` has for each idempotency key the
    numbers and names that came under it; `marks` has for each clear and rewind the newest number
    then, and `cleared` after it. `front` is a number up to which messages have left the buffer at
    least, and `flushed` one up to which they were handed over; `folds` says that some may have left
    it by a fold since it was empty; `deleted`, that its summary may be gone with a message of it.
    """

    said: tuple[str, ...] = ()
    cleared: int = 0
    keys: frozenset[tuple[str, tuple[int, ...], tuple[str, ...]]] = frozenset()
    marks: tuple[tuple[int, int], ...] = ()
    front: int = 0
    flushed: int = 0
    folds: bool = False
    deleted: bool = False


class SessionModel:
    """The sequential model's steps.

    Args:
        shapes: what is known of each message.
        numbers: what somebody was told of it at any time: the message that a number is of. It can
            be of no other, so an append whose outcome is not known is not tried where it cannot
            have been.
        drops: the policy lets messages go without a summary, so a load may begin anywhere.
        keeping: what the session keeps; None where it is not known.
    """

    def __init__(
        self,
        shapes: Mapping[str, MessageShape],
        numbers: Mapping[int, str],
        *,
        drops: bool,
        keeping: Keeping | None,
    ) -> None:
        self._shapes = shapes
        self._numbers = numbers
        self._known = {name: seq for seq, name in numbers.items()}
        self._drops = drops
        self._keeping = keeping
        self._tools = any(map(is_tool, shapes.values()))
        self._presented: dict[
            tuple[str, ...], tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]
        ] = {}

    def step(self, model: Model, operation: Operation) -> Model | None:
        """The state after an operation; None if the model would not have answered so."""
        argument, result = operation.argument, operation.result
        match operation.kind:
            case "append":
                after = _append(model, argument, result)
                if after is None or not self._may_be(after, len(model.said)):
                    return None
                return after if after.folds else after._replace(folds=self._may_fold(_live(after)))
            case "clear":
                return _clear(model, result)
            case "delete":
                return _delete(model, argument, result)
            case "rewind":
                return _rewind(model, argument, result)
            case "forget_session" | "forget_user":
                return Model()
            case "flush":
                last = len(model.said)
                if result is not None and result > last - model.flushed:
                    return None
                return model if result is None or self._tools else model._replace(flushed=last)
            case "messages":
                live = _live(model)
                start = len(live) - len(result)
                return (
                    _begins(model, start, start) if start >= 0 and live[start:] == result else None
                )
            case "history":
                told = tuple((seq, name) for seq, name in enumerate(model.said, 1) if name)
                return model if argument or result == told else None
            case _:
                return self._load(model, result, asks=argument)

    def _may_fold(self, live: tuple[str, ...]) -> bool:
        """Whether a fold may take something of a buffer of these, or of one that had these in
        it.
        """
        return self._keeping is None or self._keeping.due(live)

    def _may_be(self, model: Model, last: int) -> bool:
        """Whether no answer contradicts the numbers after `last`."""
        for seq, name in enumerate(model.said[last:], last + 1):
            if self._numbers.get(seq, name) != name or self._known.get(name, seq) != seq:
                return False
        return True

    def _load(self, model: Model, shown: Shown, *, asks: bool) -> Model | None:
        live, whole = _live(model), _whole(model, self._shapes)
        if shown.budget is not None:  # it may have a summary of its own
            return model if self._shows_some(live, shown) else None
        if shown.summarized and not model.folds:
            return None
        fitting = [
            start
            for start in self._starts(live, shown, deleted=model.deleted)
            if start not in whole
            and _begins(model, start, start) is not None
            and self._shows(live[start:], shown, deleted=model.deleted)
        ]
        return _begins(model, fitting[0], fitting[-1]) if fitting else None

    def _shows_some(self, live: tuple[str, ...], shown: Shown) -> bool:
        """Whether a load within a budget may show this: the newest, in the order of a chat API.

        What else fits is the matter of the properties of windows. A call that waits may have been
        folded.
        """
        units, awaiting = self._present(live)
        names = [name for unit in units for name in unit]
        rest = iter(names)
        if shown.awaiting not in {awaiting, ()} or not all(one in rest for one in shown.names):
            return False
        # what was folded may be all but a call that waits
        return shown.cut or not shown.names or shown.names[-1] == names[-1]

    def _starts(self, live: tuple[str, ...], shown: Shown, *, deleted: bool) -> Sequence[int]:
        """Where in what is live the buffer may begin, by the summary."""
        covered = shown.covered
        if covered is None or (
            (self._drops or deleted) and not covered
        ):  # where the buffer begins cannot be told
            return range(len(live) + 1)
        return (len(covered),) if live[: len(covered)] == covered else ()

    def _shows(self, buffer: tuple[str, ...], shown: Shown, *, deleted: bool) -> bool:
        """Whether a load of this buffer shows this; `deleted`: there may be no summary."""
        units, awaiting = self._present(buffer)
        names = tuple(name for unit in units for name in unit)
        keeping = self._keeping
        place = len(names) - len(shown.names)
        if place < 0 or names[place:] != shown.names or awaiting != shown.awaiting:
            return False
        bare = self._drops or deleted
        if place and not (bare and place == self._begin(names, 0)):
            return False
        return keeping is None or self._waits(buffer, shown, keeping)

    def _begin(self, names: Sequence[str], start: int) -> int:
        """Where a context begins that would begin at `start`: where a user's message is."""
        for place in range(start, len(names)):
            if self._shapes[names[place]].role == "user":
                return place
        return start

    def _waits(self, buffer: tuple[str, ...], shown: Shown, keeping: Keeping) -> bool:
        """Whether so many of what is shown may wait for their summary.

        A fold froze a prefix as soon as it was due (G6).
        """
        if any(
            is_tool(self._shapes[name]) for name in buffer
        ):  # where a turn may be cut is another question
            return shown.pending == 0 or keeping.due(buffer)
        return shown.pending in {
            len(set(buffer[:count]).intersection(shown.names)) for count in keeping.frozen(buffer)
        }

    def _present(
        self, buffer: tuple[str, ...]
    ) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
        """How a chat API wants these messages (G8), in what is shown whole or not at all, and the
        calls that wait.

        Results come at once after their calls, and whatever was said meanwhile after them. Calls
        whose results have not come wait, until somebody speaks. Results without a call are left
        out.
        """
        found = self._presented.get(buffer)
        if found is None:
            found = self._presented[buffer] = _presented(buffer, self._shapes)
        return found


class Keeping:
    """What a policy keeps, worked out without remora's help.

    Args:
        policy: the session's.
        weights: tokens of each message.
    """

    def __init__(
        self,
        policy: BufferPolicy,
        weights: Mapping[str, int],
    ) -> None:
        self.policy = policy
        self.weights = weights
        self._frozen: dict[tuple[str, ...], frozenset[int]] = {}

    def weight(self, names: Iterable[str]) -> int:
        """Tokens of all these."""
        return sum(self.weights[name] for name in names)

    def frozen(self, buffer: tuple[str, ...]) -> frozenset[int]:
        """How many messages of a buffer without tool calls, from the front, may wait for their
        summary.

        A fold that is due begins in the turn in which it is, so it froze what was to go then.
        """
        if self.policy.fold == "drop":
            return frozenset({0})
        found = self._frozen.get(buffer)
        if found is None:
            counts = {
                self._amount(buffer[:end])
                for end in range(2, len(buffer) + 1)
                if self.due(buffer[:end])
            }
            found = self._frozen[buffer] = frozenset(counts or {0})
        return found

    def _amount(self, buffer: tuple[str, ...]) -> int:
        """How many messages a fold of this buffer takes; the newest stays in any case."""
        policy = self.policy
        if policy.batch is not None:
            return min(policy.batch, len(buffer) - 1)
        if policy.keep_messages is not None:
            return min(max(len(buffer) - policy.keep_messages, 0), len(buffer) - 1)
        assert policy.keep_tokens is not None
        excess = self.weight(buffer) - policy.keep_tokens
        for count in range(len(buffer)):
            if self.weight(buffer[:count]) >= excess:
                return count
        return len(buffer) - 1

    def due(self, buffer: Sequence[str]) -> bool:
        """Whether a buffer is to be folded, as far as it can be cut."""
        most_tokens, most = self.policy.above_tokens, self.policy.above_messages
        over = (most_tokens is not None and self.weight(buffer) > most_tokens) or (
            most is not None and len(buffer) > most
        )
        return over and len(buffer) > 1


def _begins(model: Model, first: int, last: int) -> Model | None:
    """The state where the buffer begins between the live messages at places `first` and `last`.

    None where it cannot.

    What left the buffer does not come back, whatever is said never leaves it before something else
    is said, and only a fold takes anything out of it.
    """
    seqs = [seq for seq, name in enumerate(model.said[model.cleared :], model.cleared + 1) if name]
    if last < len(seqs) and seqs[last] <= model.front:
        return None
    if first == 0:
        return model
    if not model.folds or (first == len(seqs) and seqs[-1] == len(model.said)):
        return None
    return model if seqs[first - 1] <= model.front else model._replace(front=seqs[first - 1])


def _live(model: Model) -> tuple[str, ...]:
    """What was said since the clear, and not removed."""
    said = model.said[model.cleared :]
    return tuple(filter(None, said)) if "" in said else said


def _whole(model: Model, shapes: Mapping[str, MessageShape]) -> frozenset[int]:
    """Where, in what is live, no cut may be.

    Between a call and its results that followed at once (G8).

    With anything else in between, the agent that made the call may have been taken for dead.
    """
    found: list[int] = []
    place, awaited = 0, list[str]()
    within: list[int] = []
    for name in model.said[model.cleared :]:
        shape = shapes[name] if name else None
        if shape is not None and shape.answers in awaited:
            awaited.remove(shape.answers)
            within.append(place)
            if not awaited:
                found += within
        else:
            awaited, within = list(shape.calls) if shape is not None else [], []
        place += bool(name)
    return frozenset(found)


def _append(
    model: Model, argument: tuple[tuple[str, ...], str | None], result: Receipt | None
) -> Model | None:
    names, key = argument
    if key is not None:
        for known, seqs, said in model.keys:
            if known == key:
                told = {seqs if said == names else ()}  # no numbers: refused as a conflict
                if not all(model.said[seq - 1] for seq in seqs):
                    told.add(seqs)  # what a deleted message said, nobody knows
                right = result is None or (result.duplicate and result.seqs in told)
                return model if right else None
    first = len(model.said) + 1
    if result is not None and (
        result.duplicate or len(result.seqs) != len(names) or result.seqs[0] != first
    ):
        return None
    seqs = tuple(range(first, first + len(names)))
    if result is not None and result.seqs != seqs:
        return None
    return model._replace(
        said=model.said + names,
        keys=model.keys if key is None else model.keys | {(key, seqs, names)},
    )


def _clear(model: Model, result: int | None) -> Model | None:
    last = len(model.said)
    if result is not None:
        start = len(_live(model)) - result
        if start < 0 or _begins(model, start, start) is None:
            return None
    return model._replace(
        cleared=last, marks=(*model.marks, (last, last)), front=last, flushed=last, folds=False
    )


def _delete(model: Model, argument: tuple[int, str], result: int | None) -> Model | None:
    seq, name = argument
    known = seq <= len(model.said)
    if known and model.said[seq - 1] == name:  # in the buffer or not
        if result not in {None, 1}:
            return None
        said = (*model.said[: seq - 1], "", *model.said[seq:])
        return model._replace(said=said, deleted=model.deleted or model.folds)
    rewound = known and not model.said[seq - 1]  # and not deleted yet, perhaps
    return model if result in {None, 0} or (rewound and result == 1) else None


def _rewind(model: Model, to: int, result: int | Literal["refused"] | None) -> Model | None:
    last = len(model.said)
    if to > last or (to < last and to > 0 and not model.said[to - 1]):
        return model if result in {None, "refused"} else None
    if result is not None and result != last - to:
        return None
    if to == last:
        return model
    cleared = next((then for at, then in reversed(model.marks) if at <= to), 0)
    said = model.said[:to] + ("",) * (last - to)
    return model._replace(
        said=said, cleared=cleared, marks=(*model.marks, (last, cleared)), front=cleared, folds=True
    )


def _presented(
    live: tuple[str, ...], shapes: Mapping[str, MessageShape]
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    shown: list[list[str]] = []
    late: dict[str, list[str]] = {}
    awaiting: tuple[str, ...] = ()
    place = 0
    while place < len(live):
        head = shapes[live[place]]
        place += 1
        if not head.calls:
            if head.role != "tool":
                shown.append([live[place - 1]])
            elif head.answers in late:
                late.pop(head.answers).append(live[place - 1])
            continue
        wanted, group, others = list(head.calls), [live[place - 1]], list[str]()
        while wanted and place < len(live) and shapes[live[place]].role != "assistant":
            one = shapes[live[place]]
            if one.role != "tool":
                others.append(live[place])
            elif one.answers in wanted:
                wanted.remove(one.answers)
                group.append(live[place])
            elif one.answers in late:
                late.pop(one.answers).append(live[place])
            place += 1
        if wanted and place == len(live):
            awaiting = tuple(wanted)
        if others or not wanted or place < len(live):
            shown.append(group)
            late.update(dict.fromkeys(wanted, group))
        shown += [[name] for name in others]
    return tuple(tuple(unit) for unit in shown), awaiting
