"""The whole runtime under a seed: virtual time, drawn latencies and schedules, faults, power cuts.

Every failure can be replayed.

See docs/explanation/simulation.md. `World` is where to begin; `SeededLoop` alone runs any asyncio
or anyio code.
"""

from __future__ import annotations

from remora.faces import publish
from remora.testing.simulation.loop import Deadlock, PowerCut, SeededLoop, Stuck
from remora.testing.simulation.seams import seams
from remora.testing.simulation.stores import LaneStore, SimulatedStore
from remora.testing.simulation.world import CONFIG, Fault, Plan, World, WorldClock

__all__ = [
    "CONFIG",
    "Deadlock",
    "Fault",
    "LaneStore",
    "Plan",
    "PowerCut",
    "SeededLoop",
    "SimulatedStore",
    "Stuck",
    "World",
    "WorldClock",
    "seams",
]

publish(__name__, __all__, globals())
