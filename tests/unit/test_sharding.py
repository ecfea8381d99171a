"""Which shard a user is in, and what `shards.json` holds."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from remora.cluster.sharding import choose_layout, shard_of
from remora.errors import DirectoryUnusable, InvalidInput
from remora.ids import SHARED_PREFIX
from remora.storage.layout import SHARDS_FILE, ShardLayout, read_layout, write_layout

pytestmark = pytest.mark.blocking


def test_a_user_is_always_in_the_same_shard() -> None:
    """The numbers are part of the format: another answer would hide what users said. Users are
    spread evenly.
    """
    golden = {
        "alice": (1, 2, 138),
        "bob": (0, 1, 113),
        "zoë 🦊": (1, 5, 221),
        SHARED_PREFIX + "team": (2, 1, 81),
    }
    found = {user: tuple(shard_of(user, shards) for shards in (3, 8, 256)) for user in golden}
    assert found == golden
    spread = [shard_of(f"user {number}", 8) for number in range(8_000)]
    assert all(850 < spread.count(shard) < 1_150 for shard in range(8))


def test_the_layout_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    layout = ShardLayout.new(3)
    write_layout(tmp_path, layout)
    assert read_layout(tmp_path) == layout
    assert stat.S_IMODE((tmp_path / SHARDS_FILE).stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == [SHARDS_FILE]
    assert layout.names == ["shard-00", "shard-01", "shard-02"]


def test_a_damaged_layout_is_refused(tmp_path: Path) -> None:
    """A newer one, too."""
    for text in (
        *("", "[]", "{}"),
        '{"version":1,"shards":0,"instance":"abcdef"}',
        '{"version":1,"shards":257,"instance":"abcdef"}',
        '{"version":1,"shards":2,"instance":"../../"}',
        '{"version":1,"shards":2,"instance":"abcdef","layout":0}',
        '{"version":"1","shards":2,"instance":"abcdef"}',
        '{"version":0,"shards":2,"instance":"abcdef"}',
        '{"version":1,"shards":2',
    ):
        (tmp_path / SHARDS_FILE).write_text(text)
        with pytest.raises(DirectoryUnusable, match="restore it"):
            read_layout(tmp_path)
    (tmp_path / SHARDS_FILE).write_text('{"version": 2, "pieces": []}')
    with pytest.raises(DirectoryUnusable, match="upgrade remora"):
        read_layout(tmp_path)


def test_shards_without_their_layout_are_not_hidden_by_a_new_memory(tmp_path: Path) -> None:
    (tmp_path / "shard-00").mkdir()
    (tmp_path / "shard-00" / "remora.lock").touch()  # of a node, whose journals are in PostgreSQL
    assert choose_layout(tmp_path, None) is not None
    (tmp_path / "shard-00" / "journal.db").touch()
    with pytest.raises(DirectoryUnusable, match=r"shards\.json is missing"):
        choose_layout(tmp_path, None)


def test_the_number_of_shards_is_fixed_when_a_memory_is_made(tmp_path: Path) -> None:
    assert choose_layout(tmp_path, 1) is None
    for shards in (0, -1, 257):
        with pytest.raises(InvalidInput, match="1 to 256"):
            choose_layout(tmp_path, shards)
    new = choose_layout(tmp_path, None)
    assert new is not None
    assert new.shards == 8
    write_layout(tmp_path, new)
    assert choose_layout(tmp_path, None) == choose_layout(tmp_path, 8) == new
    with pytest.raises(InvalidInput, match=r"has 8 shards, not 4.*remora reshard"):
        choose_layout(tmp_path, 4)


def test_a_memory_that_is_not_in_shards_is_its_only_shard(tmp_path: Path) -> None:
    (tmp_path / "journal.db").touch()
    assert choose_layout(tmp_path, None) is None
    assert choose_layout(tmp_path, 1) is None
    with pytest.raises(InvalidInput, match="has 1 shard, not 8"):
        choose_layout(tmp_path, 8)
