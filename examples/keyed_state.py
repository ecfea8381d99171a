"""A booking in steps: what the application must know exactly is kept as values, not as messages."""

from __future__ import annotations

import asyncio

import remora
from remora.errors import StateConflict


async def book(chat: remora.Session, seat: str) -> bool:
    """Take a seat if the booking is still open; False if another request was faster."""
    booking = await chat.state.get("booking")
    if booking is None or booking.value["seat"] is not None:
        return False
    try:
        await chat.state.set("booking", {**booking.value, "seat": seat}, version=booking.version)
    except StateConflict as conflict:  # somebody changed it since it was read
        print("taken:", conflict.value["seat"])
        return False
    return True


async def count_visit(user: remora.User) -> int:
    """Add one to a number, however many requests do so at the same time."""
    visits = await user.state.get("visits")
    while True:
        number, version = (visits.value, visits.version) if visits else (0, 0)
        try:
            return int((await user.state.set("visits", number + 1, version=version)).value)
        except StateConflict:
            visits = await user.state.get("visits")


async def main() -> None:
    async with remora.Runtime.in_memory() as runtime:
        ana = runtime.user("ana")
        chat = ana.session("trip")
        await ana.state.set("units", "metric")
        await chat.state.set("booking", {"train": "IC 523", "seat": None})
        print(sorted(await asyncio.gather(book(chat, "12A"), book(chat, "14C"))))
        print("visits:", max(await asyncio.gather(*(count_visit(ana) for _ in range(5)))))
        await chat.clear()
        for one in [*await ana.state.items(), *await chat.state.items()]:
            print(one.key, one.value, f"(version {one.version})")


if __name__ == "__main__":
    asyncio.run(main())
