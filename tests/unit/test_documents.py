"""The documents hold together."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

import remora.blocks
import tasks
from remora.adapters import massgen
from remora.api.tools import MemoryTools

ROOT = Path(__file__).parents[2]
GUIDES = (
    "how-to/cookbook.md",
    "how-to/fastapi.md",
    "how-to/keyed-state.md",
    "how-to/migration.md",
    "reference/storage-ports.md",
    "tutorial/an-agent-that-remembers.md",
)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_links_lead_somewhere() -> None:
    """Every relative link in a document points at a file of the repository, and at a heading."""
    for found in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]+))?\)", found.read_text()):
            where = found.parent / target if target else found
            assert where.exists(), f"{found.name} links to {target}"
            assert not anchor or anchor in anchors(where.read_text()), (
                f"{found.name} links to #{anchor} of {where.name}"
            )


def anchors(text: str) -> set[str]:
    """The names that a Markdown page's headings have in links."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("guide", GUIDES)
def test_code_in_guides_is_an_examples_own(guide: str) -> None:
    """S4.32, S3.31: every block of Python in a guide names the example that it is from, and is in
    it, line for line.
    """
    text = page(guide)
    blocks = re.findall(
        r"(?:<!-- (examples/[\w/]+\.py) -->\n)?```python\n(.*?)```", text, re.DOTALL
    )
    assert blocks
    for path, code in blocks:
        assert path, f"{guide}: a block of Python without the example that it is from:\n{code}"
        source = (ROOT / path).read_text()
        assert code.rstrip() in source, f"{guide}: this is not in {path}:\n{code}"
        assert textwrap.dedent(code).strip()


def test_shown_files_are_the_examples_own() -> None:
    """What a page says is of an example is in that file, line for line, of any language."""
    for found in (ROOT / "docs").rglob("*.md"):
        shown = re.findall(
            r"^( *)<!-- (examples/[\w./]+) -->\n *```\w+\n(.*?)```",
            found.read_text(),
            re.DOTALL | re.MULTILINE,
        )
        for indent, path, block in shown:
            code = re.sub(f"^{indent}", "", block, flags=re.MULTILINE).rstrip()
            assert code in (ROOT / path).read_text(), (
                f"{found.name}: this is not in {path}:\n{code}"
            )


def test_guides_are_listed() -> None:
    """S4.32: a reader finds every page from the index."""
    index, docs = page("index.md"), ROOT / "docs"
    for found in (path.relative_to(docs).as_posix() for path in docs.rglob("*.md")):
        assert found == "index.md" or f"({found})" in index, f"{found} is not in docs/index.md"


def test_examples_are_listed() -> None:
    """A reader finds every example, with what it shows."""
    listed = (ROOT / "examples" / "README.md").read_text()
    for example in (ROOT / "examples").glob("*.py"):
        assert example.name == "__init__.py" or f"[{example.name}]({example.name})" in listed


def test_layout() -> None:
    """S4.32: public exports, README, design, adapters and runnable examples are there."""
    assert massgen.__all__ == ["ConversationMemory", "PersistentMemory"]
    for path in (
        "README.md",
        "docs/explanation/architecture.md",
        "docs/how-to/cookbook.md",
        "remora/adapters/massgen.py",
        "CHANGELOG.md",
    ):
        assert (ROOT / path).stat().st_size > 500
    examples = [
        example for example in (ROOT / "examples").glob("*.py") if example.name != "__init__.py"
    ]
    tested = "".join(test.read_text() for test in (ROOT / "tests" / "integration").glob("*.py"))
    for example in examples:
        assert f'"{example.stem}' in tested or f"examples.{example.stem}" in tested, (
            f"no test runs {example.name}"
        )


def test_suites_are_apart() -> None:
    """S4.31: unit, integration and performance have suites and tasks of their own, and CI runs the
    first two whole.
    """
    for suite in ("unit", "integration", "property", "simulation", "faults"):
        assert list((ROOT / "tests" / suite).glob("test_*.py")), suite
    assert {"unit", "prop", "fault", "bench", "check"} <= set(tasks.TASKS)
    programs = {
        path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()
    }
    assert {"many_sessions", "sizing"} <= programs
    assert (ROOT / "benchmarks" / "speed" / "__main__.py").exists()
    for test in (ROOT / "tests" / "unit").glob("test_*.py"):
        opened = [
            line
            for line in test.read_text().splitlines()
            if line.strip().startswith("import lancedb")
        ]
        assert not opened, f"{test.name} opens a real store"


def test_what_is_covered_and_what_is_not() -> None:
    """S0.31: the cookbook says that long-term and many-user memory are covered, and a knowledge
    base is not.
    """
    table = page("how-to/cookbook.md").split("## What remora covers")[1]
    rows = {row.split("|")[1].strip(): row for row in table.splitlines() if row.startswith("| ")}
    assert "covered" in rows["long-term memory of what was said"]
    assert "covered" in rows["many users, each with their own memory"]
    assert "left out" in rows["a knowledge base of documents (domain knowledge)"]


def test_older_memory_types_are_mapped() -> None:
    """S3.30, S1.20: each of the older memories has a row that names what stands for it, and what it
    names exists.
    """
    rows = {
        row.split("|")[1].strip(): row.split("|")[2]
        for row in page("how-to/migration.md").splitlines()
        if row.startswith("| `")
    }
    for old, new in (
        ("ChatMemoryBuffer", "token_window"),
        ("ChatSummaryMemoryBuffer", "summary_buffer"),
        ("VectorMemory", "recall"),
        ("SimpleComposableMemory", "blocks"),
        ("ConversationSummaryBufferMemory", "summary_buffer"),
        ("ConversationBufferMemory", "keep_all"),
        ("ConversationBufferWindowMemory", "window"),
        ("ConversationTokenBufferMemory", "token_window"),
        ("ConversationSummaryMemory", "summary"),
    ):
        row = next(value for key, value in rows.items() if key.startswith(f"`{old}"))
        assert new in row, old
    policies = set(re.findall(r"BufferPolicy\.(\w+)\(", page("how-to/migration.md")))
    assert policies <= set(dir(remora.BufferPolicy))
    for block in re.findall(r"`(\w+MemoryBlock)`", page("how-to/migration.md")):
        assert hasattr(remora.blocks, block)


def test_agentscope_names_are_mapped() -> None:
    """S4.44: every row of the document's table has its place in remora's, and the names that it
    gives exist.
    """
    table = page("how-to/migration.md").split("## MassGen and agentscope")[1].split("\n## ")[0]
    rows = {
        tuple(cell.strip() for cell in row.split("|")[1:4])
        for row in table.splitlines()
        if row.startswith("| ")
    }
    mapped = {(old, new): remoras for old, new, remoras in rows}
    for old, new, remoras in (
        ("`Msg` objects", "`Dict[str, Any]`", "remora.Message"),
        ("`StateModule`", "no base class", "state_dict"),
        ("`InMemoryMemory`", "`ConversationMemory`", "remora.adapters.massgen.ConversationMemory"),
        ("`Mem0LongTermMemory`", "`PersistentMemory`", "remora.adapters.massgen.PersistentMemory"),
        ("`AgentScope*` adapters", "`MassGen*` adapters", "remora.models.ports"),
        ("`record_to_memory`", "`save_to_memory`", "save_to_memory"),
        ("`retrieve_from_memory`", "`recall_from_memory`", "recall_from_memory"),
        ("academic style", "practical examples", "cookbook.md"),
    ):
        assert remoras in mapped[old, new]
    for name in (
        "save_to_memory",
        "recall_from_memory",
        "record_to_memory",
        "retrieve_from_memory",
    ):
        assert hasattr(massgen.PersistentMemory, name)
        assert hasattr(MemoryTools, name)


def test_storage_ports_are_described() -> None:
    """S2.16, S3.26: the page names every method of both ports, the parameter that takes a journal,
    and PostgreSQL.
    """
    from remora.storage.ports import Journal, LongTermStore  # noqa: PLC0415

    text = page("reference/storage-ports.md")
    for port in (Journal, LongTermStore):
        for name in (
            name for base in port.__mro__ for name in vars(base) if not name.startswith("_")
        ):
            assert f"`{name}" in text, f"{port.__name__}.{name} is not described"
    assert "Runtime(journal=" in text
    assert "PostgreSQL" in text


def test_documents_name_nothing_deprecated() -> None:
    """A method that warns when it is called is in no document but the changelog."""
    old = {
        f"{of.name.lower()}.{method.name}("
        for path in (ROOT / "remora").rglob("*.py")
        for of in ast.walk(ast.parse(path.read_text()))
        if isinstance(of, ast.ClassDef)
        for method in of.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and "DeprecationWarning" in ast.dump(method)
    }
    assert "write.settle(" in old
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = path.read_text().lower()
        assert not [name for name in old if name in text], path.name


NOT_CODE = re.compile(r"─|\w   +\w")  # a diagram, a table


def test_code_in_docstrings_is_code() -> None:
    """What a reader copies out of `help` runs: it is indented, and no literal is broken."""
    found = 0
    for path in (*(ROOT / "remora").rglob("*.py"), ROOT / "tasks.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            text = f"{ast.get_docstring(node) or ''}\n"
            assert not re.search(
                r"^(async with|async def|await|from \w+ import) ", text, re.MULTILINE
            ), path
            for block in re.findall(r"::\n\n((?:    .*\n|\n)+)", text):
                if not NOT_CODE.search(block):
                    found += 1
                    compile(textwrap.dedent(block), path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert found > 5


def test_what_a_default_install_keeps_is_said_in_the_same_words() -> None:
    """README, the page on configuration and the comparison describe summaries without a model."""
    pages = ("README.md", "docs/reference/configuration.md", "docs/evidence/correctness.md")
    texts = [" ".join((ROOT / page).read_text().split()) for page in pages]
    first, last = "Without a chat model, a summary is an extract:", "`history()` has them all."
    begins = texts[0].index(first)
    said = texts[0][begins : texts[0].index(last, begins) + len(last)]
    assert "in no context" in said
    assert [page for page, text in zip(pages, texts, strict=True) if said not in text] == []
