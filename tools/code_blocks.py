"""Finds the code blocks of a Markdown page, also the indented ones in the tabs of a page."""

from __future__ import annotations

import re


def code_blocks(text: str, language: str) -> list[str]:
    """Returns the content of each block in this language, without the indentation of its fence."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indentation}", "", code, flags=re.MULTILINE) for indentation, code in found]
