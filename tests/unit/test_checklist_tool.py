"""The script behind docs/evidence/data/checklist.toml, on a tree made up for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.checklist import FILE, main

COUNTS = {"G": 1, "S0": 3, "S5": 1}
LINES = """\
G1 = "a guarantee"
"S0.01" = "a first thing"
"S0.02" = "a second"
"S0.03" = "a third"
"S5.01" = "needs no test"
"""
TESTS = '''\
import pytest


class Shared:
    def test_inherited(self):
        """S0.02: from a base."""


class TestClass(Shared):
    """S0.02: all of it."""

    def test_method(self):
        """G1: nothing more."""

    def helper(self):
        """S9.99 and S0.77 are not named by a test."""


class Machine:
    """S0.03: by a state machine."""


TestMachine = Machine.TestCase


@pytest.mark.parametrize("text", ["a[b]", "c"])
async def test_parameters(text):
    """S0.01: twice."""


def test_more():
    """S0.01, S0.02"""


def test_again():
    """S0.01"""


def test_last():
    """S0.01"""
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(LINES)
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_it.py").write_text(TESTS)
    (tmp_path / "tests" / "harness.py").write_text('def test_no_test():\n    """S0.88"""\n')
    assert main(["--check"], root=tmp_path, counts=COUNTS) == 0
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_lines_are_printed(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line with all of its tests, or only the lines that are asked for."""
    at = "    tests/unit/test_it.py::"
    assert main(["S0.01", "S0.02", "S0.03"], root=tree, counts=COUNTS) == 0
    assert capsys.readouterr().out == (
        f"S0.01  a first thing\n{at}test_parameters\n{at}test_more\n{at}test_again\n{at}test_last\n"
        f"S0.02  a second\n{at}TestClass\n{at}TestClass::test_inherited\n{at}test_more\n"
        f"S0.03  a third\n{at}TestMachine\n"
    )
    assert main([], root=tree, counts=COUNTS) == 0
    everything = capsys.readouterr().out
    assert f"G1  a guarantee\n{at}TestClass::test_method\n" in everything
    assert "S5.01  needs no test\n" in everything


WRONG: list[tuple[str | Path, str, str, str]] = [
    ("tests/unit/test_it.py", "S0.03: by a", "by a", "S0.03: no test names it"),
    (
        "tests/unit/test_it.py",
        "S0.01, S0.02",
        "S0.04",
        "test_more: names S0.04, which the file",
    ),
    (
        "tests/unit/test_it.py",
        "S0.01, S0.02",
        "G7",
        "test_more: names G7, which the file",
    ),
    (FILE, '"S5.01"', '"S5.02"', "S5.01: the file has no such line"),
    (FILE, '"S5.01"', '"S5.02"', "S5.02: no such id is known"),
    (FILE, '"S0.03"', '"S0.02"', "checklist.toml: Cannot overwrite"),
]


def test_what_is_wrong_is_listed(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line without a test, an id that is nowhere or twice: each fails the check and is named."""
    for file, old, new, complaint in WRONG:
        before = (tree / file).read_text()
        edit(tree / file, old, new)
        assert main(["--check"], root=tree, counts=COUNTS) == 1
        assert complaint in capsys.readouterr().err
        (tree / file).write_text(before)


def test_only_a_passed_test_counts(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a junit file, a skipped or failed test proves nothing; one of several parameters, methods
    or tests suffices.
    """
    junit = tree / "junit.xml"

    def judge(**outcomes: str) -> int:
        cases = "".join(
            f'<testcase classname="tests.unit.test_it{owner}" '
            f'name="{name}">{outcomes.get(key, "")}</testcase>'
            for key, owner, name in (
                ("first", "", "test_parameters[a[b]]"),
                ("second", "", "test_parameters[c]"),
                ("more", "", "test_more"),
                ("method", ".TestClass", "test_method"),
                ("machine", ".TestMachine", "runTest"),
            )
        )
        junit.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
        return main(["--check", "--junit", str(junit)], root=tree, counts=COUNTS)

    assert judge() == 0
    assert judge(first="<failure/>", more="<skipped/>") == 0
    assert judge(first="<failure/>", second="<skipped/>", more="<error/>") == 1
    said = capsys.readouterr().err
    assert "S0.01: none of its tests passed: tests/unit/test_it.py::test_parameters, " in said
    assert "S0.02" not in said
    assert judge(method="<skipped/>", more="<skipped/>") == 1
    assert "S0.02: none of its tests passed" in capsys.readouterr().err
    assert judge(machine='<skipped type="pytest.xfail"/>') == 1
    assert "S0.03: none of its tests passed" in capsys.readouterr().err
