"""The structure of the package in figures.

How large its parts are, what its names say, and which way its imports point.

    python -m tools.figures [--root PATH] [--no-run]

``--root`` measures another checkout. Everything is read from the source text but for the modules
that an ``append`` and a ``load`` pass: a runtime of that checkout runs them in a process of its
own, with the packages of this interpreter.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
PACKAGE = "remora"
WIDTH = 100
VOCABULARY = "(vocabulary)"
WORDS = frozenset(
    [
        "config",
        "config_keys",
        "errors",
        "faces",
        "identity",
        "ids",
        "languages",
        "logging",
        "logs",
        "messages",
        "secrets",
    ]
)
"""What the vocabulary is made of, under today's names and earlier ones."""
ENTRY = "(entry)"
LAYERS = (
    ("cli",),
    ("client",),
    ("view", "rest"),
    ("adapters", "testing"),
    ("blocking", "blocks", "metrics", "observe", "results", "transfer"),
    ("cluster",),
    ("api",),
    ("maintenance",),
    ("services",),
    ("recall", "jobs"),
    ("actors",),
    ("storage", "models"),
    ("tokens",),
    ("formats",),
    ("runtime",),
    (VOCABULARY,),
)
"""Folders and modules of the package from the top down, as the import contract has them."""
IRREGULAR = frozenset(
    [
        "begun",
        "borne",
        "bought",
        "brought",
        "built",
        "chosen",
        "cut",
        "drawn",
        "driven",
        "fed",
        "felt",
        "found",
        "frozen",
        "given",
        "gone",
        "grown",
        "heard",
        "held",
        "hidden",
        "kept",
        "known",
        "laid",
        "led",
        "left",
        "lent",
        "lost",
        "made",
        "meant",
        "met",
        "paid",
        "put",
        "read",
        "seen",
        "sent",
        "set",
        "shown",
        "slept",
        "spoken",
        "spent",
        "split",
        "stood",
        "sworn",
        "taken",
        "taught",
        "thought",
        "told",
        "torn",
        "swept",
        "understood",
        "woken",
        "won",
        "worn",
        "written",
    ]
)
NO_PARTICIPLE = frozenset(
    [
        "bleed",
        "breed",
        "embed",
        "exceed",
        "feed",
        "need",
        "proceed",
        "put",
        "read",
        "seed",
        "set",
        "shed",
        "speed",
        "split",
        "cut",
        "succeed",
    ]
)
_TAG = re.compile(r"\bS\d+\.\d+\b")

_PROBE = """
import json, sys, tempfile, threading
from pathlib import Path
import anyio, remora

ROOT = str(Path(remora.__file__).parent)
found = {}
passed = set()

def profile(frame, event, _):
    if event == "call" and frame.f_code.co_filename.startswith(ROOT):
        passed.add(frame.f_code.co_filename[len(ROOT) + 1 : -3])

async def follow(name, call):
    passed.clear()
    await call
    found[name] = sorted(passed)

async def main(directory):
    config = remora.Config.from_dict({"recall": {"deadline_s": 60}})
    async with remora.Runtime(directory, config=config) as runtime:
        await runtime.reembedded()  # long-term memory is loaded
        chat = runtime.session("alice", "chat")
        await follow("append", chat.append({"role": "user", "content": "I moved to Lisbon."}))
        await chat.append({"role": "assistant", "content": "Noted."})
        await follow("load", chat.load())
        await chat.flush()
        await runtime.user("alice").synopsis()  # or the load has it written, in the background
        await runtime.settle()
        await follow("load(query)", chat.load("where do I live?"))

threading.setprofile(profile)
sys.setprofile(profile)
with tempfile.TemporaryDirectory() as temporary:
    anyio.run(main, Path(temporary) / "memory")
print(json.dumps(found))
"""


class Module(NamedTuple):
    """One file of the package."""

    name: str
    """With dots; a package's own file has the name of the package."""
    path: Path
    lines: list[str]
    tree: ast.Module

    @property
    def folder(self) -> str:
        """The folder, or the module at the top of the package, that it belongs to."""
        first = self.name.split(".")[1:2]
        if not first or first == ["__main__"]:
            return ENTRY
        return VOCABULARY if first[0] in WORDS else first[0]


class Definition(NamedTuple):
    """A class or function, with where it is defined."""

    name: str
    where: str
    lines: int
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    outermost: bool


def modules(root: Path) -> list[Module]:
    """All files of the package, in order."""
    found = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        found.append(Module(name, path, text.splitlines(), ast.parse(text)))
    return found


def definitions(module: Module) -> Iterator[Definition]:
    """All classes and functions of a module, nested ones as well."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            where = (
                f"{module.path.name}:{node.lineno}"
                if module.name == PACKAGE
                else f"{module.name}:{node.lineno}"
            )
            yield Definition(node.name, where, lines, node, node in module.tree.body)


def imports(module: Module, known: Iterable[str]) -> Iterator[str]:
    """The package's own modules that a module imports, in functions and for types alone as well."""
    names = frozenset(known)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module in names and not node.level:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & names
            yield from inner
            if len(inner) < len(node.names):
                yield node.module


def arrows(found: Sequence[Module]) -> dict[tuple[str, str], int]:
    """How many imports lead from one folder into another."""
    folders = {module.name: module.folder for module in found}
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for module in found:
        for name in imports(module, folders):
            if ENTRY not in {module.folder, folders[name]} and module.folder != folders[name]:
                counts[module.folder, folders[name]] += 1
    return counts


def is_participle(name: str) -> bool:
    """Whether a function's name begins with a past participle.

    A word that ends in ``ed``, or an irregular one that is in the list.
    """
    first = name.strip("_").split("_")[0]
    return first not in NO_PARTICIPLE and (
        first in IRREGULAR or (len(first) > 3 and first.endswith("ed"))
    )


def _is_property(node: ast.AST) -> bool:
    names = [ast.unparse(one).split(".")[-1] for one in getattr(node, "decorator_list", ())]
    return any(name in {"property", "cached_property"} for name in names)


def _docstring_lines(module: Module) -> int:
    owners = [module.tree, *(one.node for one in definitions(module))]
    return sum(
        text.count("\n") + 1 for owner in owners if (text := ast.get_docstring(owner, clean=False))
    )


def passed(root: Path) -> dict[str, list[str]]:
    """The modules in which a function is called during one call, by call."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", _PROBE]
    done = subprocess.run(  # noqa: S603  # this interpreter
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise SystemExit(f"a runtime of {root} failed:\n{done.stderr}")
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def _sizes(found: Sequence[Module]) -> Iterator[str]:
    sizes = [len(module.lines) for module in found]
    counted = [size for size in sizes if size > 5]  # faces and empty __init__ files
    docstrings = sum(map(_docstring_lines, found))
    yield f"{PACKAGE}/: {sum(sizes):,} lines in {len(sizes)} files; docstrings {docstrings:,}"
    folders = collections.defaultdict(list)
    for module in found:
        folders[module.folder].append(len(module.lines))
    for folder, lines in sorted(folders.items(), key=lambda one: -sum(one[1])):
        yield (
            f"  {folder:<14} {sum(lines):>7,} in {len(lines):>3} files, "
            f"median {statistics.median(lines):>5.0f}, longest {max(lines):>5,}"
        )
    yield f"median module: {statistics.median(counted):.0f} (of those with more than 5 lines)"
    longest = sorted(found, key=lambda module: -len(module.lines))[:10]
    yield f"modules over 500 lines: {sum(size > 500 for size in sizes)}; the longest: " + ", ".join(
        f"{module.name} {len(module.lines):,}" for module in longest
    )
    wide = sum(len(line) > WIDTH for module in found for line in module.lines)
    yield f"lines over {WIDTH} columns: {wide:,}"


def _long(found: Sequence[Module]) -> Iterator[str]:
    every = [one for module in found for one in definitions(module)]
    classes = sorted(
        (one for one in every if isinstance(one.node, ast.ClassDef)), key=lambda one: -one.lines
    )
    functions = sorted(
        (one for one in every if not isinstance(one.node, ast.ClassDef)), key=lambda one: -one.lines
    )
    for title, some, limit in (
        ("classes", classes, 400), ("classes", classes, 300), ("functions", functions, 60),
    ):  # fmt: skip
        over = [f"{one.name} {one.lines} ({one.where})" for one in some if one.lines > limit]
        yield f"{title} over {limit} lines: {len(over)}" + "".join(f"\n  {text}" for text in over)


def _names(found: Sequence[Module]) -> Iterator[str]:
    places: dict[bool, dict[str, list[str]]] = {
        True: collections.defaultdict(list),
        False: collections.defaultdict(list),
    }
    participles, coroutines = 0, 0
    for module in found:
        for one in definitions(module):
            is_class = isinstance(one.node, ast.ClassDef)
            if one.outermost and not one.name.startswith("__"):
                places[is_class][one.name].append(one.where)
            if not is_class and is_participle(one.name) and not _is_property(one.node):
                participles += 1
                coroutines += isinstance(one.node, ast.AsyncFunctionDef)
    for is_class, title in ((True, "class"), (False, "function")):
        twice = {name: where for name, where in sorted(places[is_class].items()) if len(where) > 1}
        yield f"{title} names used twice, at the top of modules: {len(twice)}"
        if is_class:
            yield from (f"  {name}: {', '.join(where)}" for name, where in twice.items())
    yield f"functions named by a past participle: {participles}, {coroutines} of them coroutines"
    yield f"  (the first word ends in -ed or is one of {len(IRREGULAR)}; properties are left out)"
    tags = sum(
        len(_TAG.findall(text))
        for module in found
        for owner in (module.tree, *(one.node for one in definitions(module)))
        if (text := ast.get_docstring(owner))
    )
    anywhere = sum(len(_TAG.findall(line)) for module in found for line in module.lines)
    yield f"requirement tags (S1.23) in docstrings: {tags}; anywhere: {anywhere}"


def _graph(found: Sequence[Module]) -> Iterator[str]:
    counts = arrows(found)
    rank = {folder: number for number, layer in enumerate(LAYERS) for folder in layer}
    yield f"arrows between folders: {len(counts)} pairs, {sum(counts.values())} imports"
    for (above, below), count in sorted(counts.items()):
        yield f"  {above} -> {below}: {count}"
    mutual = [(a, b) for a, b in sorted(counts) if a < b and (b, a) in counts]
    yield f"mutual pairs: {len(mutual)}" + "".join(
        f"\n  {a} -> {b}: {counts[a, b]}, back: {counts[b, a]}" for a, b in mutual
    )
    upward = {
        pair: count
        for pair, count in sorted(counts.items())
        if rank.get(pair[0], 99) > rank.get(pair[1], 99)
    }
    yield f"imports that point up: {sum(upward.values())}"
    yield from (f"  {a} -> {b}: {count}" for (a, b), count in upward.items())
    if outside := sorted({module.folder for module in found} - {*rank, ENTRY}):
        yield f"in no layer: {', '.join(outside)}"


def _passed(root: Path) -> Iterator[str]:
    for call, names in passed(root).items():
        yield f"modules in which {call} calls something: {len(names)}"
        yield f"  {' '.join(names)}"


def main(words: Sequence[str] | None = None) -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=Path, default=HERE, help="the checkout to measure (default: this one)"
    )
    parser.add_argument(
        "--no-run", action="store_true", help="leave out what needs a runtime to run"
    )
    options = parser.parse_args(words)
    root = options.root.resolve()
    found = modules(root)
    if not found:
        parser.error(f"there is no package {PACKAGE} in {root}")
    for part in (_sizes, _long, _names, _graph):
        print("\n".join(part(found)), end="\n\n")
    if not options.no_run:
        print("\n".join(_passed(root)))


if __name__ == "__main__":
    main()
