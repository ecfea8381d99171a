"""``kill -9`` just before and just after a commit of keyed state: all of a change is there, or
nothing, and the caller can tell.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from remora import Runtime
from remora.errors import StateConflict
from tests.faults.state_kills import Expected, change, open_runtime, place_of

pytestmark = pytest.mark.blocking


@pytest.mark.parametrize(("when", "commit"), [("before", 12), ("after", 12), ("after", 15)])
def test_kill_within_a_commit(tmp_path: Path, when: str, commit: int) -> None:
    """G3, G4: what was acknowledged is there; a change that was not is there if its commit was; its
    caller, who gives the same version again, succeeds, or is told of the value that it has set; and
    no version is used again.
    """
    command = [sys.executable, "-m", "tests.faults.state_kills", str(tmp_path / "memory")]
    done = subprocess.run(
        [*command, when, str(commit)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    heard = len(done.stdout.splitlines())
    assert heard > 8

    async def check() -> None:
        expected: Expected = {}
        used: dict[str, int] = {}
        async with Runtime.in_memory(config=open_runtime(tmp_path).config) as model:
            for number in range(heard):
                await change(model, number, expected, used)
        async with open_runtime(tmp_path / "memory") as runtime:
            kept = [
                ((f"place {place}", one.key), (one.value, one.version))
                for place in (0, 1)
                for one in await place_of(runtime, place).items()
            ]
            if when == "before":
                assert dict(kept) == expected
                await change(runtime, heard, expected, used)
            else:
                key = (f"place {heard % 2}", f"key {heard % 6}")
                version = expected.get(key, (0, 0))[1]
                with pytest.raises(StateConflict) as caught:
                    await change(runtime, heard, dict(expected), dict(used))
                assert (caught.value.expected, caught.value.value) == (version, heard)
                expected[key] = (heard, caught.value.actual)
                assert dict(kept) == expected
                used[key[0]] += 1
            for number in range(heard + 1, heard + 20):
                await change(runtime, number, expected, used)

    anyio.run(check)
