"""The documents hold together."""

from __future__ import annotations

import re
from pathlib import Path

import remora.blocks
from remora.adapters import massgen
from remora.results import MemoryTools

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


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


def test_what_is_covered_and_what_is_not() -> None:
    """S0.31: the cookbook says that long-term and many-user memory are covered, and a knowledge
    base is not.
    """
    table = page("how-to/cookbook.md").split("## What remora covers")[1]
    rows = dict(re.findall(r"^\| (.+?) \| (.+?)[ ;:,.|]", table, re.MULTILINE))
    assert rows["long-term memory of what was said"] == "covered"
    assert rows["many users, each with their own memory"] == "covered"
    assert rows["a knowledge base of documents (domain knowledge)"] == "**left"


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
    """S4.44: every name of the document's table has its place in remora's, and the names that it
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
    ):
        assert remoras in mapped[old, new]
    for name in ("save_to_memory", "recall_from_memory"):
        assert hasattr(MemoryTools, name)
    for name in (
        "save_to_memory",
        "recall_from_memory",
        "record_to_memory",
        "retrieve_from_memory",
    ):
        assert hasattr(massgen.PersistentMemory, name)


def test_health_codes_are_explained() -> None:
    """Each code that a probe can answer with has a row, which says its effect."""
    rows = dict(re.findall(r"^\| (`.+`) \| (.+?) \|", page("how-to/health.md"), re.MULTILINE))
    effects = {code: effect for codes, effect in rows.items() for code in re.findall(r"\w+", codes)}
    found = [
        match
        for source in (ROOT / "remora").rglob("*.py")
        for match in re.findall(r'HealthProblem\(\s*"(\w+)",\s*"([\w ]+)"', source.read_text())
    ]
    assert len(found) > 10
    for code, effect in found:
        assert effects[code].startswith(effect), code


def test_requests_over_http_are_described() -> None:
    """The page has each request of the service, and no other."""
    from remora.rest.operations import OPERATIONS  # noqa: PLC0415
    from remora.rest.streams import EVENTS  # noqa: PLC0415

    described: set[str] = set()
    for section in page("reference/http.md").split("\n## ")[1:]:
        if prefix := re.search(r"Paths begin with `(.+?)`", section):
            described |= {
                f"{method} {prefix[1]}{path}"
                for row in re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE)
                for method, path in re.findall(r"`([A-Z]+) ?(.*?)`", row)
            }
    session = {
        one.replace("{user}/state", "{user}/sessions/{session}/state")
        for one in described
        if "{user}/state" in one
    }
    there = {f"{one.method} {one.path}" for one in OPERATIONS} | {f"GET {EVENTS.path}"}
    assert described | session == there


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
