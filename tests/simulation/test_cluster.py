"""The protocol between workers and owners, whatever breaks.

Nothing that was acknowledged is lost, nothing is doubled, and nothing is reordered.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from remora.actors.session.messages import Append
from remora.cluster.router import Repeat, repeat_of
from remora.testing import Operation, linearizable
from tests.simulation.network import SESSIONS, Network

State = tuple[str, ...]
START: State = ()


def step(state: State, operation: Operation) -> State | None:
    """A session as a sequential program."""
    if operation.kind == "read":
        return state if operation.result == state else None
    if operation.result is None:
        return (*state, operation.argument)
    if operation.argument in state:
        return None
    return (*state, operation.argument) if operation.result == len(state) + 1 else None


def problems(network: Network) -> list[str]:
    """What is wrong with a run."""
    found = []
    for name in SESSIONS:
        stored = network.disk.texts[name]
        if len(set(stored)) != len(stored):
            found.append(f"doubled in {name}: {stored}")
        history = network.history[name]
        for one in history:
            place = 0 if one.kind == "read" or one.result is None else one.result
            if place and stored[place - 1 : place] != [one.argument]:
                found.append(f"lost from {name}: {one.argument} of {stored}")
        known = {one.argument for one in history}
        # what died with its worker, or was never answered, may be there
        pending = [
            Operation(0.0, float("inf"), "append", text, None)
            for text in stored
            if text not in known
        ]
        if linearizable([*history, *pending], START, step) is None:
            found.append(f"no order explains {name}: {history}")
    return [*found, *reordered(network)]


def reordered(network: Network) -> list[str]:
    """Appends of a client that are stored in another order than they were made."""
    places: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for worker, session, number in network.in_order:
        text = f"t{number}"
        if text in network.disk.texts[session]:
            at = network.disk.texts[session].index(text)
            places[worker, session].append((number, at))
    found = []
    for where, pairs in places.items():
        order = [at for _, at in sorted(pairs)]
        if order != sorted(order):
            found.append(f"reordered: {where}, {sorted(pairs)}")
    return found


@pytest.mark.parametrize("base", range(0, 240, 60))
def test_nothing_is_lost_doubled_or_reordered(base: int) -> None:
    repeated = unknown = answered = 0
    for seed in range(base, base + 60):
        network = Network(seed)
        network.run(300)
        assert not problems(network), seed
        for worker in network.workers:
            assert worker.router.outstanding == 0, seed
            repeated += worker.router.repeated
            unknown += worker.router.unknown
        answered += sum(map(len, network.history.values()))
    assert answered > 300
    assert repeated > 10
    assert unknown > 2


def test_the_checker_notices_unkeyed_appends_that_are_sent_again() -> None:
    """The mistake that a router could make: a lost answer would double a message."""

    def everything(message: object) -> Repeat:
        return "write" if isinstance(message, Append) else repeat_of(message)

    for seed in range(400):
        network = Network(seed, everything)
        network.run(300)
        if any("doubled" in one for one in problems(network)):
            return
    pytest.fail("no seed doubled a message")
