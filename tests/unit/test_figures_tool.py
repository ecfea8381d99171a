"""The script that prints the figures of the package's structure, on a tree made up for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.figures import arrows, is_participle, main, modules

TREE = {
    "__init__.py": "",
    "errors.py": '"""S1.01: errors."""\n\nclass Found(Exception):\n    pass\n',
    "runtime/__init__.py": "",
    "runtime/cell.py": "from remora.errors import Found\n\n\nasync def settled() -> None: "
    "...\n\n\ndef helper() -> None: ...\n",
    "actors/__init__.py": "",
    "actors/session.py": (
        "from remora.runtime import cell\nfrom remora.runtime.cell import helper as h\n\n\nclass "
        "Found:\n"
        + "    x = 1\n"
        * 301
        + "\n    @property\n    def kept(self) -> int:\n        return 1\n\n\ndef helper() -> "
        "None:\n" + "    print()\n" * 60 + f"\n\nTEXT = {'x' * 100!r}\n"
    ),
}


def tree(root: Path, **more: str) -> Path:
    for name, text in {**TREE, **more}.items():
        path = root / "remora" / name.replace("__init__py", "__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.blocking
def test_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes, long definitions, names and arrows of a small package."""
    main(["--root", str(tree(tmp_path)), "--no-run"])
    page = capsys.readouterr().out
    for line in (
        "lines over 100 columns: 1",
        "classes over 400 lines: 0",
        "classes over 300 lines: 1",
        "functions over 60 lines: 1",
        "class names used twice, at the top of modules: 1",
        "  Found: remora.actors.session:5, remora.errors:3",
        "function names used twice, at the top of modules: 1",
        "functions named by a past participle: 1, 1 of them coroutines",
        "requirement tags (S1.23) in docstrings: 1; anywhere: 1",
        "arrows between folders: 2 pairs, 3 imports",
        "  actors -> runtime: 2",
        "  runtime -> (vocabulary): 1",
        "mutual pairs: 0",
        "imports that point up: 0",
    ):
        assert f"\n{line}\n" in page, line


@pytest.mark.blocking
def test_an_import_that_points_up_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever it stands: in a function, or for types alone. So is a folder in no layer."""
    late = "def later() -> None:\n    import remora.actors.session\n"
    root = tree(tmp_path, **{"runtime/late.py": late, "attic/__init__.py": "x = 1\n"})
    assert arrows(modules(root)) == {
        ("actors", "runtime"): 2,
        ("runtime", "actors"): 1,
        ("runtime", "(vocabulary)"): 1,
    }
    main(["--root", str(root), "--no-run"])
    page = capsys.readouterr().out
    assert "mutual pairs: 1\n  actors -> runtime: 2, back: 1\n" in page
    assert "imports that point up: 1\n  runtime -> actors: 1\n" in page
    assert "in no layer: attic" in page


@pytest.mark.blocking
def test_there_is_nothing_to_measure(tmp_path: Path) -> None:
    """A directory without the package."""
    with pytest.raises(SystemExit):
        main(["--root", str(tmp_path), "--no-run"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("swept", True), ("_settled_rows", True), ("kept_by", True), ("embed", False),
        ("feed_blocks", False), ("is_closed", False), ("red", False),
        ("sweep", False), ("__reduced__", True),
    ],
)  # fmt: skip
def test_past_participles(name: str, expected: bool) -> None:
    """By the first word of a name."""
    assert is_participle(name) == expected


@pytest.mark.blocking
def test_this_package_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The checkout itself, with the modules that calls pass: the way of an append leads through its
    actor to the journal.
    """
    main([])
    page = capsys.readouterr().out
    assert "mutual pairs: 0\n" in page
    assert "imports that point up: 0\n" in page
    assert "in no layer" not in page
    append = page.split("modules in which append calls something: ")[1].splitlines()[1].split()
    assert {"api/session", "runtime/cell", "storage/sqlite/writer"} <= set(append)
