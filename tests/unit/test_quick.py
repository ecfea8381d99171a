"""The tests of a folder are found by its imports and its name."""

from __future__ import annotations

import pytest

from tools import quick

pytestmark = pytest.mark.blocking


def test_tests_of_a_folder() -> None:
    """Those that import it, those that are named after it, and those that use its test modules."""
    found = quick.tests_of(["remora/storage/lance"])
    assert "tests/faults/test_long_term.py" in found[""]
    assert "tests/unit/test_lance_manifest.py" in found[""]
    assert "tests/property/test_erasure.py" in found["tests.lance"]
    assert "tests/integration/test_view_browser.py" in quick.tests_of(["remora/view/"])[""]


def test_tests_of_nothing() -> None:
    with pytest.raises(SystemExit, match="no module is there: remora/storage/lanse"):
        quick.tests_of(["remora/storage/lanse"])


def test_a_changed_test_is_near() -> None:
    assert quick.choose_tests(["tests/unit/test_quick.py"]).files == ["tests/unit/test_quick.py"]


def test_shared_modules() -> None:
    """What a test may use is listed, with a sentence about each module."""
    found = {module: (users, about) for module, users, about in quick.shared_modules()}
    assert found["tests.patience"][0] > 10
    assert found["tests.postgres"][1].startswith("A PostgreSQL")
