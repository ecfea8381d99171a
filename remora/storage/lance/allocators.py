"""Native memory of the process: who allocates it, and how what is free returns to the system.

LanceDB and Arrow share the process's allocators, and two of these keep memory that nothing uses:

* pyarrow's default pool is mimalloc, which keeps pages of threads that have ended. LanceDB reads
  Arrow tables in its own threads, of which some thirty come and go, and Arrow allocates there. So
  pyarrow's default pool becomes the C library's. Passing that pool to each call of ours is not
  enough: calls of LanceDB still kept 72 MB after three minutes of load, and so keep 4 MB.
* glibc gives each new thread an arena of its own, up to eight for each core, and an arena keeps
  what is free in it. A rewrite of a table allocates far more than it leaves. So there are at most
  two arenas, and free memory is returned after writes, and when the models are loaded. With
  sixteen arenas, returning is not enough: small blocks in use are spread over all of them.

Both change the whole process, so they can be switched off (`long_term.tune_allocators`), and what
the host has chosen stays: a pool other than mimalloc, or a setting in the environment.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from typing import Any

from remora.logging import get_logger

_logger = get_logger(__name__)
_M_ARENA_MAX = -8  # of glibc's malloc.h
_ARENAS = 2


def set_arrow_pool() -> None:
    """Have pyarrow allocate with the C library, unless the host has chosen a pool."""
    pa = importlib.import_module("pyarrow")
    if (
        pa.default_memory_pool().backend_name == "mimalloc"
        and "ARROW_DEFAULT_MEMORY_POOL" not in os.environ
    ):
        pa.set_memory_pool(pa.system_memory_pool())
        _logger.info("arrow_pool_set", pool="system")


@functools.cache
def limit_arenas() -> None:
    """Have glibc make no more than two arenas, unless the environment says how many.

    glibc takes its number when it makes the ninth arena, so this has to come before there are as
    many threads. Does nothing with another C library.
    """
    mallopt = _function_of_glibc("mallopt")
    if (
        mallopt is not None
        and "MALLOC_ARENA_MAX" not in os.environ
        and "malloc.arena_max" not in os.environ.get("GLIBC_TUNABLES", "")
    ):
        mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
        mallopt(_M_ARENA_MAX, _ARENAS)


def return_free_memory() -> None:
    """Have glibc return free memory to the system, which takes it some milliseconds.

    Other threads go on: it runs without the GIL. Does nothing with another C library.
    """
    if trim := _function_of_glibc("malloc_trim"):
        trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
        trim(0)


@functools.cache
def _function_of_glibc(name: str) -> Any:
    """A function of the C library; None where it is not glibc."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 -- musl has a `mallopt` that does nothing
        return getattr(library, name)
    except (AttributeError, OSError, TypeError):  # Windows has no handle on the whole process
        return None
