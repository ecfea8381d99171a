from __future__ import annotations
from dataclasses import dataclass, field
@dataclass(frozen=True)
class Case:
    claim: str
    name: str
    sizes: dict[str, int | float] = field(default_factory=dict)
@dataclass(frozen=True)
class Bar:
    case: str
    text: str
    figure: str
    than: str | None = None
    least: float | None = None
    most: float | None = None
