"""Say which tests prove which line of docs/evidence/data/checklist.toml; each has one.

    python3 tools/checklist.py [ID …]                print the lines, each with its tests
    python3 tools/checklist.py --check               print what is wrong; exit with 1 if anything is
    python3 tools/checklist.py --check --junit FILE  also each line without a test that passed there

A test proves the ids that its docstring names. Those of a class docstring are proved by each test
of the class, and those of a hypothesis state machine by its `TestCase`. Needs nothing but the
standard library.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["COUNTS", "FILE", "Proof", "main", "passed", "problems", "proofs"]

COUNTS = {"G": 13, "S0": 31, "S1": 27, "S2": 34, "S3": 32, "S4": 44, "S5": 6}
"""How many lines each section has, so that a lost one is noticed."""
PROVED = ("S0", "S1", "S2", "S3", "S4")
"""Sections of which each line must have a test."""
FILE = Path("docs", "evidence", "data", "checklist.toml")

_ID = re.compile(r"\b(?:S[0-5]\.\d\d|G\d+)\b")


class Proof(NamedTuple):
    """A test function, or a test class as a whole, and the ids that its docstring names."""

    path: str
    names: tuple[str, ...]
    ids: frozenset[str]

    @property
    def node(self) -> str:
        """As pytest writes it, without parameters."""
        return "::".join((self.path, *self.names))

    @property
    def case(self) -> str:
        """As a junit file writes it: dotted."""
        return ".".join((*Path(self.path).with_suffix("").parts, *self.names))


# -- what the tests say ----------------------------------------------------------------------------


def proofs(root: Path) -> list[Proof]:
    """Every test under ``root/tests`` that names an id, by path and line."""
    found: list[Proof] = []
    for path in sorted((root / "tests").rglob("*.py")):
        if path.name.startswith("test_") or path.stem.endswith("_test"):
            tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
            classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
            tests = _tests(tree.body, (), classes)
            found.extend(
                Proof(path.relative_to(root).as_posix(), names, ids) for names, ids in tests if ids
            )
    return found


def _tests(
    body: Iterable[ast.stmt], within: tuple[str, ...], classes: Mapping[str, ast.ClassDef]
) -> Iterator[tuple[tuple[str, ...], frozenset[str]]]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith(
                "test"
            ):
                yield (*within, name), _ids(node)
            case ast.ClassDef(name=name) if name.startswith("Test"):
                names = (*within, name)
                yield names, _ids(node)
                yield from _tests(_inherited(node, classes), names, classes)
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Attribute(value=ast.Name(id=machine), attr="TestCase"),
            ):
                if machine in classes:
                    yield (*within, name), _ids(classes[machine])


def _inherited(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[ast.stmt]:
    """The class's body, and what it inherits from bases in the same module."""
    body = list(node.body)
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes and classes[base.id] is not node:
            known = {getattr(statement, "name", None) for statement in body} - {None}
            body.extend(
                s
                for s in _inherited(classes[base.id], classes)
                if getattr(s, "name", None) not in known
            )
    return body


def _ids(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> frozenset[str]:
    return frozenset(_ID.findall(ast.get_docstring(node) or ""))


def passed(junit: Path) -> set[str]:
    """Dotted names of the tests that passed in a junit file of pytest, and of their classes.

    Parameters cut off.
    """
    names: set[str] = set()
    for case in ET.parse(junit).iter("testcase"):  # noqa: S314
        if not any(child.tag in {"skipped", "failure", "error"} for child in case):
            owner = case.get("classname", "")
            names |= {owner, f"{owner}.{case.get('name', '').partition('[')[0]}"}
    return names


# -- what the file says ----------------------------------------------------------------------------


def problems(
    lines: Mapping[str, str],
    found: Sequence[Proof],
    *,
    counts: Mapping[str, int] = COUNTS,
    succeeded: set[str] | None = None,
) -> list[str]:
    """What is wrong with the checklist, a line each.

    With `succeeded`, also whose tests did not pass.

    Args:
        lines: what each id says.
        found: see `proofs`.
        counts: how many lines each section must have.
        succeeded: see `passed`; None if no run is to be judged.
    """
    expected = [
        f"{s}{n}" if s == "G" else f"{s}.{n:02}"
        for s, count in counts.items()
        for n in range(1, count + 1)
    ]
    wrong = [f"{id_}: the file has no such line" for id_ in expected if id_ not in lines]
    wrong += [
        f"{id_}: no such id is known to tools/checklist.py" for id_ in lines if id_ not in expected
    ]
    for id_ in expected:
        if id_ in lines and id_.startswith(PROVED):
            provers = [proof for proof in found if id_ in proof.ids]
            if not provers:
                wrong.append(f"{id_}: no test names it")
            elif succeeded is not None and not any(proof.case in succeeded for proof in provers):
                wrong.append(
                    f"{id_}: none of its tests passed: {', '.join(proof.node for proof in provers)}"
                )
    wrong += [
        f"{proof.node}: names {id_}, which the file lacks"
        for proof in found
        for id_ in sorted(proof.ids - lines.keys())
    ]
    return wrong


def main(
    arguments: Sequence[str] | None = None,
    *,
    root: Path | None = None,
    counts: Mapping[str, int] = COUNTS,
) -> int:
    """Print the lines and their tests, or check them; returns the exit code."""
    root = root or Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="only these lines")
    parser.add_argument(
        "--check", action="store_true", help="print what is wrong alone; exit with 1 if anything is"
    )
    parser.add_argument(
        "--junit",
        type=Path,
        metavar="FILE",
        help="with --check: each line needs a test that passed in this file",
    )
    options = parser.parse_args(arguments)
    if options.junit and not options.check:
        parser.error("--junit goes with --check")
    try:
        lines = tomllib.loads((root / FILE).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as e:
        print(f"{FILE}: {e}", file=sys.stderr)
        return 1
    found = proofs(root)
    if not options.check:
        for id_ in options.ids or lines:
            print(f"{id_}  {lines.get(id_, 'there is no such line')}")
            for proof in found:
                if id_ in proof.ids:
                    print(f"    {proof.node}")
        return 0
    wrong = problems(
        lines, found, counts=counts, succeeded=passed(options.junit) if options.junit else None
    )
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        print(f"{FILE}: {len(wrong)} wrong", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
