"""``python -m tests.mutants.playing FIRST SEEDS``: play seeds until one breaks a guarantee, and
print what came of it as JSON.

What runs here may be planted with a bug, so whatever it raises counts as a failure of the seed.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from tests.checker.exploring import draw_case, play


def main(words: Sequence[str] | None = None) -> int:
    """Prints an object of `seeds` played, `cpu_s` and `violation` (null for none)."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.playing", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("seeds", type=int)
    parser.add_argument("--journal", choices=["memory", "sqlite"], default="memory")
    asked = parser.parse_args(words)
    logging.disable(logging.CRITICAL)
    options: dict[str, Any] = {"journal": asked.journal}
    began_s, played, violation = time.process_time(), 0, None
    for seed in range(asked.first, asked.first + asked.seeds):
        played += 1
        try:
            found = [str(one) for one in play(draw_case(seed), **options).violations]
        except Exception as e:
            found = [f"{type(e).__name__}: {e}"]
        if found:
            violation = found[0].splitlines()[0]
            break
    json.dump(
        {"seeds": played, "cpu_s": time.process_time() - began_s, "violation": violation},
        sys.stdout,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
