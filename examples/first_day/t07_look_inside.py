"""See what is stored: in the program that owns the directory, and beside it, from a shell.

``python -m examples.first_day.t07_look_inside``
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import remora


def shell(*command: str) -> None:
    print(f"$ remora {' '.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", "remora", *command, "--dir", "memory"], check=True)  # noqa: S603 - constants


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        await runtime.session("alice", "monday").append({"role": "user", "content": "Hello!"})
        for found in await runtime.users():
            for session in await runtime.user(found.user).sessions():
                print(found.user, session.session, session.messages)
        for command in ("users", "sessions alice", "show alice monday", "recall alice hello"):
            await asyncio.to_thread(shell, *command.split())  # the runtime stays open


asyncio.run(main())
