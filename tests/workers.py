"""Memories that several processes use, and their owners, for tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from remora.cluster.control import ControlLink, OwnerGone
from remora.cluster.place import OwnerInfo, Place
from remora.cluster.watch import open_control
from remora.config import ClusterConfig

__all__ = ["OWNERS", "end_owner", "owner_of", "owner_process", "write_config"]

OWNERS = [
    pytest.mark.blocking,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="owners need Linux"),
]
"""Marks of tests whose memory other processes own."""
CONFIG = """\
directory: {directory}
long_term: {{enabled: false}}
tokens: {{counter: heuristic}}
buffer: {{policy: keep_all}}
mailbox: {{timeout_s: 600}}
cluster: {{shards: 2, linger_s: 60, wait_s: 600, silent_s: {silent_s}, stuck_s: 600,
  max_deaths: 100{cluster}{owners}}}
"""


def write_config(path: Path, cluster: str = "", *, silent_s: float = 600) -> Path:
    """A configuration file for the memory `memory` beside it, with one owner unless it says more.

    An owner that only waits for its turn on a busy machine is not taken for one that hangs.
    """
    file = path / "remora.yaml"
    owners = "" if "owners:" in cluster else ", owners: 1"
    directory = path / "memory"
    text = CONFIG.format(directory=directory, cluster=cluster, owners=owners, silent_s=silent_s)
    file.write_text(text)
    return file


def owner_of(directory: Path) -> OwnerInfo:
    """Who owns the memory."""
    info = Place(directory).read_owner()
    assert info is not None
    return info


@contextmanager
def owner_process(info: OwnerInfo) -> Iterator[ControlLink]:
    """The owner's process, for as long as it lives."""
    with open_control(info, ClusterConfig()) as control:
        yield control


def end_owner(directory: Path, number: int = 9) -> None:
    """End the owner, if there is one, and wait until it has ended."""
    info = Place(directory).read_owner()
    if info is None:
        return
    try:
        with owner_process(info) as control:
            os.kill(control.pid, number)
            assert control.wait(600)
    except OwnerGone:
        pass
