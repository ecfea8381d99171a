"""Tells remora, and nobody else, that a process is on another operating system."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["tell_remora"]


class _Loader:
    def __init__(self, real: Any, told: dict[str, Any]) -> None:
        self._real = real
        self._told = told

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._real.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        before = {name: getattr(sys, name) for name in self._told}
        vars(sys).update(self._told)
        try:
            self._real.exec_module(module)
        finally:
            vars(sys).update(before)


class _Finder:
    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith("remora.system."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        spec.loader = _Loader(spec.loader, self._told)  # type: ignore[assignment]
        return spec


def tell_remora(**told: Any) -> None:
    """Have `sys` say something else while modules of `remora.system` are imported."""
    sys.meta_path.insert(0, _Finder(told))
