"""The package's description: the README, without links and images that are only in the sources. And its examples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

# Images and links of the sources: no anchor, and no address of the web.
_IMAGE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)\s]+\)\n*")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": outside(text)}


class ExamplesHook(BuildHookInterface):  # type: ignore[type-arg]
    """What `gantry pipeline init --template` writes; an editable installation has them in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            build_data["force_include"]["examples/pipelines"] = "gantrymq/pipeline/examples"


def outside(text: str) -> str:
    """Markdown that names files of the sources instead of linking to them, and has no images of the sources."""
    return _LINK.sub(r"\1 (`\2` in the sources)", _IMAGE.sub("", text))
