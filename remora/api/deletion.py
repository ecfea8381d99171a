"""The names by which a caller deletes: a memory, a message or an id; one or many."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from remora.errors import IndexOutOfRange, InvalidInput
from remora.ids import validate_id
from remora.messages import Message
from remora.recall.memory import Memory
from remora.services.arguments import MAX_IDS, collect

_MOST = 1 << 32
Deletable: TypeAlias = str | Message | Memory


def parse_which(
    which: Deletable | Iterable[Deletable], session: str | None = None
) -> tuple[tuple[str, str], ...]:
    """The sessions and ids of what is named; an empty session where that is not known.

    Args:
        which: one or many.
        session: the only one that messages may be of; None for any.

    Raises:
        InvalidInput: something else than a memory, a message or an id, or too many; a summary; or
            a message of another session.
    """
    given: list[object]
    if isinstance(which, Iterable) and not isinstance(which, (str, Mapping)):
        given = collect(which, "what to delete", most=MAX_IDS)
    else:
        given = [which]
    return tuple([_parse(each, session) for each in given])


def _parse(one: object, session: str | None) -> tuple[str, str]:
    match one:
        case str():
            return session or "", validate_id(one, "the id of what to delete")
        case Message(id=str(id_)):
            return session or "", id_
        case Message():
            raise InvalidInput("this message has no id: it is not one that remora has stored")
        case Memory(type="summary"):
            raise InvalidInput(
                "a summary is not deleted alone: delete the messages that it covers, and it is "
                "written again without them"
            )
        case Memory(type="message"):
            if session not in {None, one.session}:
                raise InvalidInput(
                    "this memory was said in another session: delete it there, or with User.delete"
                )
            return one.session, one.id
        case Memory() if session is None:
            return "", one.id
        case Memory():
            raise InvalidInput("this memory was recorded, and is no message: use User.delete")
        case _:
            raise InvalidInput(
                f"delete takes a memory, a message or an id, not {type(one).__name__}; a position "
                "in the buffer is given as positions=…"
            )


def parse_deletion(
    which: Deletable | Iterable[Deletable], positions: int | Iterable[int] | None, session: str
) -> tuple[tuple[tuple[str, str], ...], tuple[int, ...]]:
    """Return what is to be deleted of a session: as `parse_which`, and positions in its buffer.

    Raises:
        InvalidInput: nothing is named; a position is not an integer, or they are too many; or see
            `parse_which`.
        IndexOutOfRange: no buffer has such a position.
    """
    ids = parse_which(which, session)
    if positions is None:
        if which == ():
            raise InvalidInput("say what to delete: a message, a memory or an id, or positions=…")
        return ids, ()
    return ids, _parse_positions(positions)


def _parse_positions(positions: int | Iterable[int]) -> tuple[int, ...]:
    if isinstance(positions, (str, bytes)):
        raise InvalidInput("a position in the buffer is an integer; ids are given without a name")
    given: list[Any] = [positions]
    if isinstance(positions, Iterable):
        given = collect(positions, "positions", most=MAX_IDS)
    try:
        places = tuple([operator.index(one) for one in given])
    except TypeError as e:
        raise InvalidInput(f"a position in the buffer is an integer: {e}") from e
    if outside := tuple([one for one in places if not 0 <= one < _MOST]):
        shown = ", ".join(map(str, outside[:10]))
        raise IndexOutOfRange(f"no buffer has a position {shown}", places=outside)
    return places
