"""`remora.connect`: one memory for all worker processes of a machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remora.cluster.connected import ConnectedRuntime


def connect(target: str | Path) -> ConnectedRuntime:
    """A memory that other processes use as well; enter it with ``async with``.

    A process of its own owns the memory. The first worker starts it, and it ends a while after the
    last one has left. If it dies, another one takes its place within seconds: reads, and appends
    with a key, then go on by themselves.

    Args:
        target: ``"module:function"``, whose function takes no arguments and returns a
            `remora.Runtime` that is not open; it is called here, and waited for without a limit,
            and once more in the owner. Or the path of a configuration file; or a memory
            directory, for the configuration of the environment. A new directory whose name looks
            like a module's, ``chat.memory`` for instance, is written ``./chat.memory``.

    Raises:
        InvalidInput: another process cannot make a runtime of it, or Linux is older than
            5.3.
        ConfigError: the configuration is not valid.
        DirectoryUnusable: the directory cannot be used.
    """
    # takes twice the time of `import remora`
    from remora.cluster.connected import ConnectedRuntime  # noqa: PLC0415
    from remora.cluster.target import read_target  # noqa: PLC0415

    return ConnectedRuntime(read_target(target))
