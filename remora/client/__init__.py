"""`remora.Client`: the memory that `remora http` serves, with the handles of a `Runtime`."""

from __future__ import annotations

from remora.client.client import Client

__all__ = ["Client"]
