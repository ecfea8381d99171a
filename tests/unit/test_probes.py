"""Probes are placed where their table says, and count what is reached (issue: named rare branches)."""  # noqa: E501

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import remora
from remora.runtime.probes import probe
from remora.testing import count_probes
from remora.testing.probes import CATALOGUES, PROBES

_CALL = re.compile(r"\bprobe\(([^)]*)\)")


@pytest.mark.blocking  # reads the package's files
def test_every_probe_is_placed_and_every_place_is_in_the_table():
    """A misspelt name would count where nobody looks; a name without a place could never be
    reached.
    """
    root = Path(remora.__file__).parent
    for folder, catalogue in CATALOGUES.items():
        placed = {
            name
            for path in (root / folder).rglob("*.py")
            if path.name != "probes.py"
            for name in _CALL.findall(path.read_text(encoding="utf-8"))
        }
        assert {name.strip('"') for name in placed} == set(catalogue), folder
        assert all(name.startswith('"') for name in placed), (
            "a probe's name stands where it is called, so that it can be found"
        )
    assert len(PROBES) == sum(map(len, CATALOGUES.values())), "a name is in one catalogue only"
    assert all(re.fullmatch(r"[a-z_]+", name) and told.strip() for name, told in PROBES.items())


def test_what_is_reached_is_counted_for_each_who_observes():
    """Nobody observing, nothing is kept; two who observe are told apart."""
    probe("gate_broken")
    with count_probes() as outer:
        probe("gate_broken")
        with count_probes() as inner:
            probe("gate_broken")
        probe("job_dead_lettered")
    probe("job_dead_lettered")
    assert outer == {"gate_broken": 2, "job_dead_lettered": 1}
    assert inner == {"gate_broken": 1}
    assert inner["job_dead_lettered"] == 0


def test_observing_ends_with_its_block_whatever_it_raises():
    """A test that fails must not have the others counted."""
    with pytest.raises(KeyError), count_probes() as counts:
        raise KeyError
    probe("gate_broken")
    assert not counts


@pytest.mark.nightly
@pytest.mark.blocking  # runs pytest
@pytest.mark.parametrize(("left_out", "workers"), [(0, 2), (1, 2)])
def test_a_suite_that_misses_a_probe_fails(tmp_path: Path, left_out: int, workers: int):
    """``pytest --probes FILE`` writes down how often each was reached, in all workers together, and
    fails a run that passed but for one of them.
    """
    suite, table = tmp_path / "test_suite.py", tmp_path / "build" / "probes.txt"
    suite.write_text(
        "from remora.runtime.probes import probe\nfrom remora.testing.probes import PROBES\n\n"
        f"def test_half():\n    [probe(name) for name in list(PROBES)[{left_out}::2]]\n\n"
        "def test_other_half():\n    [probe(name) for name in list(PROBES)[1::2]]\n"
    )
    root = Path(__file__).parents[2]
    words = [
        "-c",
        str(root / "pyproject.toml"),
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        f"--probes={table}",
        f"--numprocesses={workers}",
        str(suite),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=root,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == left_out, done.stdout
    first, *others = table.read_text().splitlines()
    assert first.split()[:2] == [next(iter(PROBES)), str(1 - left_out)]
    assert len(others) == len(PROBES) - 1
    assert (f"never reached: {next(iter(PROBES))}" in done.stdout) == bool(left_out)
