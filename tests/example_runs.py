"""Which examples hypothesis plays: some are the same in every run, and some are new in each.

Of the examples of a property test, two thirds are hypothesis's derandomized ones. The others are
drawn from the run's seed, which pytest's header shows; ``--examples-seed N`` draws them again.
What failed is kept in `tests/examples`, and is tried first in the next run.

``REMORA_EXAMPLES`` is the number of examples of a test that asks for none of its own.
``REMORA_HYPOTHESIS=soak`` has new ones only, and many.
"""

from __future__ import annotations

import functools
import os
import random
import secrets
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, core, is_hypothesis_test, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

__all__ = ["LONG", "SAVED", "play_machine"]

LONG = os.environ.get("REMORA_HYPOTHESIS", "ci") != "ci"
SAVED = Path(__file__).parent / "examples"
_SHARE = 3  # one of so many examples is new
_CHANCE = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
"""What a seed may be out of luck with."""

_RUN: dict[str, int] = {}

settings.register_profile(
    "remora",
    max_examples=int(os.environ.get("REMORA_EXAMPLES", "20000" if LONG else "60")),
    derandomize=not LONG,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("remora")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--examples-seed",
        type=int,
        metavar="N",
        help="draw the new examples of the run that had this seed (default: one by chance)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed of the run, unless it is given."""
    given = getattr(config, "workerinput", {}).get("examples_seed", config.option.examples_seed)
    config.option.examples_seed = _RUN["seed"] = (
        secrets.randbelow(1 << 32) if given is None else given
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Workers of pytest-xdist have the seed of their controller."""
    node.workerinput["examples_seed"] = _RUN["seed"]


def pytest_report_header(config: pytest.Config) -> str:
    return f"examples: --examples-seed {config.option.examples_seed} draws the new ones again"


@pytest.fixture
def new_seeds(request: pytest.FixtureRequest) -> Callable[[int], list[int]]:
    """So many seeds that are this run's own, beyond those that a test plays each time."""
    rng = random.Random(f"{request.config.option.examples_seed}/{request.node.nodeid}")
    return lambda count: [rng.randrange(1 << 20, 1 << 32) for _ in range(count)]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Play a property test's new examples, and then those of every run."""
    seed = f"{pyfuncitem.config.option.examples_seed}/{pyfuncitem.nodeid}"
    # from this generator it draws a seed for each part; with `hypothesis.seed` or with
    # ``--hypothesis-seed`` it would neither save what fails nor try what was saved
    core.threadlocal._hypothesis_global_random = random.Random(seed)
    if is_hypothesis_test(pyfuncitem.obj):
        pyfuncitem.obj = _in_parts(pyfuncitem.obj)
    return (yield)


def play_machine(machine: type[RuleBasedStateMachine]) -> None:
    """Run a state machine, as a property test runs."""
    whole = settings(stateful_step_count=100 if LONG else 40)
    for part in _parts(whole):
        _play(part, functools.partial(run_state_machine_as_test, machine, settings=part))


def _parts(whole: settings) -> Sequence[settings]:
    """What a test with these settings is divided into."""
    if LONG:
        return [settings(whole, database=_saved())]
    # hypothesis begins with the simplest example, so that of one alone none would be new
    new = min(whole.max_examples // _SHARE + 1, whole.max_examples)
    return [
        settings(
            whole,
            max_examples=new,
            derandomize=False,
            database=_saved(),
            phases=set(Phase) - {Phase.explicit},
            suppress_health_check={*whole.suppress_health_check, *_CHANCE},
        ),
        settings(whole, max_examples=max(whole.max_examples - new, 1)),
    ]


@functools.cache
def _saved() -> DirectoryBasedExampleDatabase:
    return DirectoryBasedExampleDatabase(SAVED)


def _in_parts(test: Any) -> Callable[..., None]:
    @functools.wraps(test)
    def played(*arguments: Any, **named: Any) -> None:
        whole = test._hypothesis_internal_use_settings
        try:
            for part in _parts(whole):
                # what `settings` sets, which refuses to do so twice
                test._hypothesis_internal_use_settings = part
                _play(part, functools.partial(test, *arguments, **named))
        finally:
            test._hypothesis_internal_use_settings = whole

    return played


def _play(part: settings, test: Callable[[], None]) -> None:
    try:
        test()
    except Exception as e:
        if not part.derandomize:
            e.add_note(
                f"A new example: --examples-seed {_RUN['seed']} draws it again; the next run tries "
                f"it first, from {SAVED}."
            )
        raise
