"""A failure that repeats is one line, then a summary a minute, and its end is one line."""

from __future__ import annotations

import pytest

from remora.errors import CommitFailed, OutcomeUnknown
from remora.logging import get_logger
from remora.runtime.meters import OutageLog


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_outage_is_logged_once_then_in_summary(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "remora")
    time = Time()
    log = OutageLog(get_logger("remora.test"), "failed", ended="resumed", monotonic=time)
    log.succeed()
    for _ in range(700):  # 70 seconds
        log.fail(CommitFailed("the disk is full"), writes=1)
        time.now += 0.1
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "the disk is full" in lines[0]
    assert "writes=1" in lines[0]
    assert "failures=60" in lines[1]
    log.fail(OutcomeUnknown("the disk failed"))
    assert "the disk failed" in caplog.text, "another reason is reported at once"
    caplog.clear()
    time.now += 1
    log.succeed()
    assert not caplog.records, "a nearly full disk takes some writes in between"
    log.fail(CommitFailed("the disk is full"))
    time.now += 10
    log.succeed()
    log.succeed()
    assert [record.getMessage() for record in caplog.records] == [
        "event=resumed failures=702 seconds=71.0"
    ]
    log.fail(CommitFailed("the disk is full again"))
    assert "full again" in caplog.text
