"""The package's description: the README, without links that lead nowhere outside of the sources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# [text](target), but no image, no anchor and no address of the web.
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": outside(text)}


def outside(text: str) -> str:
    """Markdown in which files of the sources are named, not linked to."""
    return _LINK.sub(r"\1 (`\2` in the sources)", text)
