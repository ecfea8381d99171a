"""Step 7: everything of one user is erased."""

from __future__ import annotations

import asyncio
from pathlib import Path

import remora


def files_with(word: bytes) -> int:
    return sum(word in path.read_bytes() for path in Path("memory").rglob("*") if path.is_file())


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        await runtime.settle()
        print(f"files with 'Lisbon': {files_with(b'Lisbon') > 0}")
        receipt = await runtime.user("alice").forget()
        print(f"messages deleted: {receipt.journal['messages'] > 0}")
        print(f"files with 'Lisbon': {files_with(b'Lisbon') > 0}")
        print(await runtime.user("alice").sessions())


if __name__ == "__main__":
    asyncio.run(main())
