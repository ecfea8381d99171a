"""Make a golden memory directory: one of each thing that remora leaves on a disk, and what it
answers.

    python -m tests.golden.make_directory NAME

It is run with the code of before a change that must not be noticed, and what it made is committed
as ``tests/golden/NAME``. Later code opens the copies and must answer the same
(`tests/integration/test_golden.py`). In ``files.tar.xz`` are

- ``memory``: the directory as `Runtime.aclose` leaves it, with a summary that is not written yet
    and a dead letter;
- ``killed``: the same directory as it stood on the disk while its runtime was open;
- ``backup``: what `Runtime.backup` made of it;
- ``export.jsonl`` and ``export``: what `Runtime.export` wrote, as JSON lines and as Parquet.

``answers.json`` has what `memory` answers as it is, what it answers when all work is done, and what
is imported from an export.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import anyio

from tests.copies import copy_memory
from tests.golden.directory import answers, fill, finish, import_export, open_runtime

HERE = Path(__file__).parent


async def make(base: Path) -> dict[str, Any]:
    """Fill a directory, copy it in every way there is, and ask the copies."""
    async with open_runtime(base / "memory") as runtime:
        await fill(runtime)
        await runtime.export(base / "export.jsonl")
        await runtime.export(base / "export")
        await runtime.backup(base / "backup")
        copy_memory(base / "memory", base / "killed")
    copy = base / "copy"
    copy_memory(base / "memory", copy)
    found = {}
    async with open_runtime(copy) as runtime:
        found["memory"] = await answers(runtime)
    async with open_runtime(copy, waits=False, mended=True) as runtime:
        await finish(runtime)
        found["finished"] = await answers(runtime)
    async with open_runtime(base / "imported", waits=False, mended=True) as runtime:
        await import_export(runtime, base / "export.jsonl")
        found["imported"] = await answers(runtime, imported=True)
    for name in ("copy", "imported"):
        shutil.rmtree(base / name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="what the golden directory is called")
    place = HERE / parser.parse_args().name
    if place.exists():
        parser.error(f"{place} is there already")
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        found = anyio.run(make, base)
        place.mkdir()
        with tarfile.open(place / "files.tar.xz", "w:xz") as files:
            for one in sorted(base.iterdir()):
                files.add(one, one.name)
    text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True)
    (place / "answers.json").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{place}: {sum(one.stat().st_size for one in place.iterdir())} bytes\n")


if __name__ == "__main__":
    main()
