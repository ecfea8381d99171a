"""A disk that is full, broken, read-only or slow under a whole runtime; the benchmark does the same
at every write.
"""

from __future__ import annotations

import pytest

from benchmarks.disk import possible, under

pytestmark = pytest.mark.skipif(
    bool(possible()), reason=f"faults under the C library: {possible()}"
)


@pytest.mark.parametrize(
    ("fault", "most"),
    [
        ("full-at-each-write", 12),
        ("broken-write", 8),
        ("broken-sync", 8),
        ("full-for-a-while", 1),
        ("read-only", 1),
    ],
)
def test_a_disk_that_fails(fault: str, most: int) -> None:
    """G3, G4, G11: nothing acknowledged is lost or doubled, a retried key has one effect, and
    service resumes by itself.
    """
    report = under(fault, most=most, timeout_s=100)
    assert report.injected >= most
    assert report.verdict.wrong == {}
    assert report.verdict.acknowledged > 0
    assert report.refused + report.uncertain > 0
    assert report.resumed_s
    if fault == "full-at-each-write":
        assert report.uncertain == 0, "a full disk is a provable refusal"


def test_a_slow_disk() -> None:
    """G3, G10: with syncs of 200 ms nobody runs into a deadline; commits grow instead, until all
    who wait share one.
    """
    report = under("slow", most=3, timeout_s=100)
    assert report.verdict.wrong == {}
    assert report.refused + report.uncertain == 0
    assert report.details["appends"] == 600
    assert report.details["appends a commit"] > 20
