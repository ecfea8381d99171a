"""Delete a user: no byte of what they said, or of their id, is left in the directory.

``python -m examples.first_day.t08_delete_a_user``
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import remora


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        await runtime.session("alice", "monday").append({"role": "user", "content": "My pin: 4711"})
        print(await runtime.user("alice").forget())


asyncio.run(main())
files = [path for path in Path("memory").rglob("*") if path.is_file()]
print([path.name for path in files if b"4711" in path.read_bytes()])
