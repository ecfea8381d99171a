"""Configuration of several workers on one box."""

from remora.config.secrets import Secret
from remora.config.section import Section


class ClusterConfig(Section, frozen=True, kw_only=True):
    """The owner: the process that holds the memory for all workers that `remora.connect`."""

    shards: int | None = None
    """Journals over which users are hashed, fixed when a memory is made. None: as many as there
    are, and 8 where an owner makes a memory."""
    owners: int | None = None
    """Processes that own the memory in a directory, each some of its shards. None: one for each
    four cores of the machine, and never more than there are shards."""
    start_owner: bool = True
    """Whether a worker that finds no owner starts one. Otherwise it waits for `remora serve`."""
    standby: bool = False
    """A second process, with everything loaded, takes over when the owner dies: half a second
    instead of one or two, for 130 to 300 MB."""
    linger_s: float = 30.0
    """How long an owner that a worker started stays after the last worker has left."""
    wait_s: float = 30.0
    """How long a worker waits for an owner that answers."""
    silent_s: float = 2.0
    """An owner that answers no ping for this long is killed, and another one started."""
    stuck_s: float = 30.0
    """An owner whose event loop has not run for this long is killed, although it answers."""
    worker_silent_s: float = 60.0
    """A worker with an open turn that has sent nothing for this long stands still: its connection
    is closed, and its turns end. Workers send something every second."""
    listen: str = ""
    """With journal.dsn: where `remora serve` takes connections of workers, host:port. Elsewhere
    than on loopback it needs `certificate` and `key`."""
    address: str = ""
    """What workers on other machines connect to, host:port; empty: as in `listen`."""
    secret: Secret = Secret()
    """What owners and workers of all machines know, 32 characters or more: each side proves it to
    the other."""
    certificate: str = ""
    """File with the certificate that `remora serve` shows (PEM); it may be self-signed."""
    key: str = ""
    """File with the certificate's private key (PEM)."""
    max_deaths: int = 3
    """Owners that may die within 30 s before workers stop starting others, and raise
    OwnerFailed."""
