"""The child process: runs one program against one library, in that library's environment.

    python -m benchmarks.lab.correctness.driver SUBJECT PROGRAM DIRECTORY [--small]

It writes figures as JSON lines to standard output, and needs the standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import importlib
import importlib.metadata
import json
import logging
import os
import platform
import resource
import sqlite3
import sys
import warnings
from pathlib import Path
from typing import Any

from benchmarks.lab.correctness.programs import FULL, PROGRAMS, SMALL, Bench


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subject")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--distributions", default="", help="names whose versions are reported")
    options = parser.parse_args()
    # What a library prints must not get among the figures.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def say(kind: str, content: Any) -> None:
        out.write(json.dumps({kind: content}) + "\n")

    say(
        "versions",
        {
            name: importlib.metadata.version(name)
            for name in options.distributions.split(",")
            if name
        },
    )
    (secure_delete,) = sqlite3.connect(":memory:").execute("PRAGMA secure_delete").fetchone()
    say("python", platform.python_version())
    say(
        "sqlite",
        f"{sqlite3.sqlite_version}, built with secure_delete {'on' if secure_delete else 'off'}",
    )
    module = importlib.import_module(f"benchmarks.lab.correctness.subjects.{options.subject}")
    if options.program in module.LACKS:
        say("not applicable", module.LACKS[options.program])
    else:
        sizes = SMALL if options.small else FULL
        bench = Bench(
            module.opened,
            options.directory,
            lambda figures: say("figures", figures),
            sizes,
            summarizes="overflow" not in module.LACKS,
            shares_blocks=getattr(module, "SHARES_BLOCKS", False),
        )
        try:
            asyncio.run(PROGRAMS[options.program](bench))
        except Exception as e:
            say("failed", f"{type(e).__name__}: {e}"[:300])
            raise
        say("done", content=True)
    out.flush()
    # A library may have left threads behind that would keep the process.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
