"""All probes of remora, each folder's in its own catalogue."""

from __future__ import annotations

from collections.abc import Mapping

from remora.actors.probes import PROBES as ACTORS
from remora.api.probes import PROBES as API
from remora.jobs.probes import PROBES as JOBS
from remora.models.probes import PROBES as MODELS
from remora.recall.probes import PROBES as RECALL
from remora.runtime.probes import PROBES as RUNTIME
from remora.services.probes import PROBES as SERVICES
from remora.storage.probes import PROBES as STORAGE

__all__ = ["CATALOGUES", "PROBES"]

CATALOGUES: Mapping[str, Mapping[str, str]] = {
    "runtime": RUNTIME,
    "models": MODELS,
    "storage": STORAGE,
    "actors": ACTORS,
    "jobs": JOBS,
    "recall": RECALL,
    "services": SERVICES,
    "api": API,
}
"""By folder."""

PROBES: Mapping[str, str] = {
    name: branch for catalogue in CATALOGUES.values() for name, branch in catalogue.items()
}
"""Every probe, and when it is reached."""
