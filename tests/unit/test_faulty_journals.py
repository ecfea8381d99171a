"""The conformance suite of journals can fail: each faulty journal is noticed by the check that
names its fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from remora.errors import InvalidInput
from remora.testing import journal_checks, journal_suite
from remora.testing.journals import Capability
from tests.journals.faulty import FAULTY

pytestmark = pytest.mark.anyio

CHECKS = {check.__name__: check for check in journal_checks(*get_args(Capability))}


@pytest.mark.parametrize("name", FAULTY)
async def test_a_faulty_journal_is_noticed(name: str, tmp_path: Path) -> None:
    """S5.05: by the check that is named after what it breaks."""
    check, access = FAULTY[name]
    with pytest.raises((AssertionError, BaseExceptionGroup)) as noticed:
        await CHECKS[check](access(tmp_path))
    assert {type(error) for error in leaves(noticed.value)} == {AssertionError}


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group; one that is no group is its own."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for one in error.exceptions:
        yield from leaves(one)


def test_each_capability_has_checks() -> None:
    """The plain suite is for every journal; each capability adds to it; a wrong name is refused."""
    assert set(journal_suite) == set(journal_checks("owners"))
    for capability in get_args(Capability):
        assert set(journal_checks()) < set(journal_checks(capability))
    assert len(CHECKS) == len(journal_checks(*get_args(Capability)))
    with pytest.raises(InvalidInput, match="owners, commit_numbers"):
        journal_checks("backup")  # type: ignore[arg-type]
