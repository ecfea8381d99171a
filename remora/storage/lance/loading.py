"""Importing LanceDB.

LanceDB 0.40 imports a generated client of a REST service, which only its cloud connections use. The
functions of that client take 0.7 s of LanceDB's 1.9 s to make. So the client's package runs its
code when somebody asks for something of it, and is then the real one.

LanceDB's own code writes warnings to standard error, past Python's logging: that clusters of an
index are empty, for instance, forty lines at a time. `LANCEDB_LOG` says from which level on, once,
at the import; where an application has not set it, only errors are written.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

from remora.runtime.threads import load_module, run_in_thread

_CLIENT = "lance_namespace_urllib3_client"
_LISTS = ("__all__", "__version__")  # that the package's code makes
_running = threading.RLock()


class _Later(ModuleType):
    """A package that runs its code when it is asked for what it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _LISTS:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with _running:
            if type(self) is _Later:  # another thread may have run it
                _become(self, ModuleType)
                try:
                    assert self.__spec__ is not None
                    assert self.__spec__.loader is not None
                    self.__spec__.loader.exec_module(self)
                except BaseException:
                    _become(self, _Later)
                    raise
            return getattr(self, name)


def _become(module: ModuleType, kind: type[ModuleType]) -> None:
    module.__class__ = kind


def import_lancedb() -> ModuleType:
    """The module. The import blocks for a second."""
    if _CLIENT not in sys.modules and "lancedb" not in sys.modules:
        spec = find_spec(_CLIENT)
        os.environ.setdefault("LANCEDB_LOG", "error")
        if spec is not None and spec.loader is not None:
            client = module_from_spec(spec)
            _become(client, _Later)
            sys.modules[_CLIENT] = client
    return load_module("lancedb")


async def load_lancedb() -> Any:
    """The module, imported in a thread: who closes need not wait."""
    return await run_in_thread(import_lancedb, abandon_on_cancel=True)
