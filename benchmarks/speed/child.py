"""The child process: one measurement, in the contestant's environment; JSON on stdout.

    python -m benchmarks.speed.child CLAIM CASE CONTESTANT DIRECTORY SEED [--smoke]
        [--distributions a,b]

Needs the standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib.metadata
import json
import logging
import os
import sqlite3
import sys
import warnings
from pathlib import Path

from benchmarks.speed.claim import Skipped
from benchmarks.speed.claims import claim


def main() -> None:
    """Measure, and print a line of JSON: ``figures``, ``skipped`` or ``failed``; ``versions``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("claim")
    parser.add_argument("case")
    parser.add_argument("contestant")
    parser.add_argument("directory", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--distributions", default="", help="names whose versions are reported")
    options = parser.parse_args()
    # What a library prints must not get among the figures.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  # there is none on Windows

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found: dict[str, object] = {
        "versions": {"SQLite": sqlite3.sqlite_version} | versions(options.distributions)
    }
    module = claim(options.claim)
    case = next(one for one in module.cases(options.smoke) if one.name == options.case)
    try:
        found["figures"] = module.measure(
            options.contestant, case, options.directory, options.seed, options.smoke
        )
    except Skipped as e:
        found["skipped"] = str(e)
    except BaseException as e:
        found["failed"] = f"{type(e).__name__}: {e}"[:300]
        raise
    finally:
        out.write(json.dumps(found) + "\n")
        out.flush()
    # A library may have left threads behind that would keep the process.
    sys.stderr.flush()
    os._exit(0)


def versions(names: str) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for name in filter(None, names.split(",")):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


if __name__ == "__main__":
    main()
