"""The repository's own rules (`tools.lint`) see what they are for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.figures import differences, written
from tools.figures import figures as measured
from tools.lint.code import errors, private_parts
from tools.lint.documents import examples, figures, installs, links, listings
from tools.lint.lancedb import lancedb
from tools.lint.process import process_state, shared_variables
from tools.lint.source import Source, sources
from tools.lint.words import docstrings

CONTEXT = "@contextmanager\ndef often():\n os.umask(0)\n yield\n"
BANNED = {
    errors: [
        "raise InvalidInput(f'{user} has nothing')",
        "raise NotGranted(f'{self.who!r} may not', scope=scope, who=who)",
        "raise errors.SessionBusy('a' f'{state.key!r} waits', waiting=1)",
        "return StorageError(f\"{row['user']} is damaged\")",
    ],
    lancedb: [
        "lance.query().where(f\"user_id = '{user}'\")",
        'lance.delete("id = \'" + id_ + "\'")',
        "lance.delete(\"id = '%s'\" % id_)",
        "lance.delete(\"id = '{}'\".format(id_))",
        "lance.update(values, where=col('a') == lit(b))",
        "lance.count_rows(expr.to_sql())",
        "lance.query().fast_search()",
        "lance.tags.create('a', 1)",
        "lance.query().to_list()",
        "lance.add([{'a': 1}])",
        "lance.add([row for row in rows])",
        "lance.merge_insert('id')",
        "lance.optimize(cleanup_older_than=timedelta(0))",
        "lance.optimize(cleanup_older_than=timedelta())",
        "lance.set_lsm_write_spec(spec)",
    ],
    docstrings: [
        '"""What a module has."""',
        'def f():\n """Whether it is open."""',
        'class A:\n """Those of the rows."""',
    ],
    process_state: [
        "async def f():\n with warnings.catch_warnings():\n  await g()",
        "async def f():\n logging.getLogger('a').setLevel(10)",
        "import os\nasync def f():\n os.environ['A'] = 'b'",
        "import sys\nasync def f():\n sys.excepthook, before = g, sys.excepthook",
        "import sys\ndef f():\n sys.path[:] = []",
        "import logging as log\ndef f():\n log.basicConfig = g",
        "import os\ndef f():\n del os.environ['A']",
        "def f():\n os.umask(0)",
        "def f():\n loop.add_signal_handler(2, g)",
        f"{CONTEXT}async def f():\n with often():\n  await g()",
        f"{CONTEXT}async def f():\n with often(), g():\n  async for _ in h():\n   pass",
        f"{CONTEXT}@often()\nasync def f():\n pass",
        "async def f():\n token = v.set(1)\n try:\n  yield\n finally:\n  v.reset(token)",
    ],
    shared_variables: [
        "a = {}\ndef f():\n a[1] = 2",
        "a = set()\ndef f():\n a.add(1)",
        "def f():\n global a\n a = 1",
    ],
}


def test_what_is_banned_is_seen() -> None:
    """G6, G7, G13, S2.18: each of them."""
    for rule, texts in BANNED.items():
        for text in texts:
            assert list(rule([Source("remora/elsewhere.py", text)])), (rule.__name__, text)


def test_private_parts_are_seen() -> None:
    source = """
from remora.x import _a
journal._b = 1
setattr(journal, "_c", 2)
patch.setattr("remora.x._d", 3)
patch.setattr(remora.x, "_e", 4)
getattr(journal, "_f")
value._replace(a=self._own, b=super()._own, c=getattr(self, "_own"), d=value.__doc__)
"""
    found = {line[-2:] for line in private_parts([Source("tests/elsewhere.py", source)])}
    assert found == {"_a", "_b", "_c", "_d", "_e", "_f"}


@pytest.mark.blocking
def test_pages_install_from_the_clone() -> None:
    by_name = Source(
        "docs/a.md", 'Run `pip install "remora[serve]"`, then:\n\npip install -U remora\n'
    )
    assert len(list(installs([by_name]))) == 2
    assert not list(installs([Source("docs/a.md", 'pip install "./remora[serve]" uvicorn')]))


def test_a_stale_figure_is_seen() -> None:
    """A measured figure of a page is the one of its data file, and its text is shown."""
    assert list(figures(sources())) == []
    for text, complaint in (
        ("stored <!--figure:benchmarks.overload.sent-->7<!--/-->", "says 7, the data 107,989"),
        ("<!--figure:benchmarks.nothing-->7<!--/-->", "no data file has this figure"),
        ("- <!--figure:benchmarks.overload.sent-->107,989<!--/-->", "begins a line"),
    ):
        found = list(figures([Source("docs/a.md", text)]))
        assert any(complaint in line for line in found), found
    stale = "a <!--figure:speed.sustained.256.remora.per_s-->1<!--/-->."
    known = measured()
    assert list(differences(written(stale, known), known)) == []


def test_a_figure_has_a_run(tmp_path: Path) -> None:
    """Nobody can repeat a measurement whose command is unknown."""
    figure = {"value": 7, "unit": "ms", "run": "load"}
    run = {"command": "python -m benchmarks.load", "date": "2026-11-30", "machine": "a machine"}
    file = tmp_path / "page.json"
    file.write_text(json.dumps({"runs": {"load": run}, "figures": {"load.ms": figure}}))
    assert measured(tmp_path) == {"page.load.ms": "7"}
    file.write_text(json.dumps({"runs": {}, "figures": {"load.ms": figure}}))
    with pytest.raises(ValueError, match=r"page.json: load.ms: its run lacks command"):
        measured(tmp_path)


def test_guides_are_whole() -> None:
    """S3.31, S4.32: links lead somewhere, a reader finds every page and example from its index, and
    code in a guide is an example's own.
    """
    pages = sources()
    for rule in (examples, links, listings):
        assert list(rule(pages)) == []
    page = (
        "[a](nowhere.md) [b](#nothing)\n<!-- examples/quickstart.py -->\n```python\nno code\n```\n"
    )
    broken = [Source("docs/how-to/cookbook.md", page)]
    assert [len(list(rule(broken))) for rule in (examples, links, listings)] == [1, 2, 1]
