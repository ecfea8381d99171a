"""The README as package indexes show it: its links lead to the repository, at the version's tag."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["ReadmeHook"]

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Set the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add it to the table `project`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address, version = metadata["urls"]["Repository"], metadata["version"]

        def addressed(link: re.Match[str]) -> str:
            picture, words, path = link.groups()
            kind = "raw" if picture else "blob"
            return f"{picture}[{words}]({address}/{kind}/v{version}/{path})"

        shown = _LINK.sub(addressed, text)
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}
