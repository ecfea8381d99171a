"""Figures of a runtime as text for Prometheus, to be served as ``/metrics``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import cast

import msgspec

import remora


def figures(value: object, name: str = "remora") -> Iterator[tuple[str, float]]:
    """Each number of `Runtime.statistics`, named by the fields that lead to it."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[object, object]", value).items():
            yield from figures(inner, f"{name}_{str(key).replace('-', '_')}")
    elif isinstance(value, int | float):
        yield name, value


def metrics(runtime: remora.Runtime) -> str:
    statistics = runtime.statistics()
    lines = [f"{name} {value:g}" for name, value in figures(statistics)]
    return "\n".join([*lines, f"remora_log_lost {int(bool(statistics.log.lost))}", ""])


async def main() -> None:
    async with remora.Runtime.in_memory() as runtime:
        await runtime.session("alice", "chat").append({"role": "user", "content": "Hello"})
        print(metrics(runtime))


if __name__ == "__main__":
    asyncio.run(main())
