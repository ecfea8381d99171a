"""The command line."""

from __future__ import annotations

import argparse
from typing import Any, Protocol


class Commands(Protocol):
    """The port of a parser's commands: what `add_subparsers` returns."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """Add a command."""
        ...
