"""Apply the repository's own rules to all of its files: a line for each violation.

python -m tools.lint
"""

from __future__ import annotations

import argparse
import sys

from tools.lint.code import errors, loggers, private_parts, separation
from tools.lint.documents import examples, figures, installs, links, listings
from tools.lint.lancedb import lancedb
from tools.lint.process import process_state, shared_variables
from tools.lint.prose import lowered, prose, table
from tools.lint.source import Rule, sources
from tools.lint.words import docstrings, words

__all__ = ["RULES", "main"]

RULES: tuple[Rule, ...] = (
    docstrings,
    errors,
    examples,
    figures,
    installs,
    lancedb,
    links,
    listings,
    loggers,
    private_parts,
    process_state,
    prose,
    separation,
    shared_variables,
    words,
)


def main() -> int:
    """Print what is wrong; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Apply the rules: "
        + ", ".join(
            f"{rule.__name__} ({(rule.__doc__ or '').split('.')[0].split(':')[-1].strip()})"
            for rule in RULES
        )
    )
    parser.parse_args()
    files = sources()
    found = [f"{line} [{rule.__name__}]" for rule in RULES for line in rule(files)]
    print("\n".join(found) or f"{len(files)} files, {len(RULES)} rules: nothing is wrong")
    if not found and lowered(files, counts := table()) != counts:
        print("counts of pages have fallen: python -m tools.prose --update lowers docs/prose.toml")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
