"""Who waits for whom: what a stuck run is told by."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import CoroutineType, FrameType
from typing import Any

import anyio

__all__ = ["who_waits"]


def who_waits(tasks: Iterable[asyncio.Task[Any]]) -> str:
    """One line a task: its name, where it stands, and whom it waits for, where that can be seen.

    Seen are a lock's owner, a task group's children, and the actor or job that something of the
    kernel waits for.
    """
    return (
        "\n".join(_describe_frame(task) for task in tasks if not task.done()) or "no task is left"
    )


def _describe_frame(task: asyncio.Task[Any]) -> str:
    frames = _frames(task)
    places = [f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in frames if _ours(frame)][
        -4:
    ]
    where = (
        " > ".join(places or [frame.f_code.co_qualname for frame in frames[-1:]])
        or "its first step"
    )
    return f"  {task.get_name()}: {where}{_whom(frames)}"


def _frames(task: asyncio.Task[Any]) -> list[FrameType]:
    """From the outermost coroutine to the innermost."""
    frames: list[FrameType] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = (
            getattr(awaited, "cr_frame", None)
            or getattr(awaited, "gi_frame", None)
            or getattr(awaited, "ag_frame", None)
        )
        if frame is not None:
            frames.append(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        if not isinstance(awaited, CoroutineType) and not hasattr(awaited, "gi_frame"):
            break
    return frames


def _ours(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    return "site-packages" not in path and "/asyncio/" not in path


def _whom(frames: list[FrameType]) -> str:
    for frame in reversed(frames):
        one = frame.f_locals.get("self")
        name = frame.f_code.co_name
        if isinstance(one, anyio.Lock) and name == "acquire":
            owner = one.statistics().owner
            return f", for a lock that {owner.name if owner else 'nobody'} holds"
        if isinstance(one, anyio.abc.TaskGroup) and name == "__aexit__":
            children = sorted(child.get_name() for child in getattr(one, "_tasks", ()))
            return f", for its tasks {', '.join(children[:8])}" if children else ""
        if (key := frame.f_locals.get("key")) is not None and type(one).__module__.startswith(
            "remora.runtime"
        ):
            return f", for {type(one).__name__} of {key!r}"
    return ""
