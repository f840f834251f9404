"""Copies the code blocks of docs/PAGE.md to docs/zh/PAGE.md in order, so that both languages show the same code.

    python tools/translated_code.py             # all pages that are translated
    python tools/translated_code.py client.md   # some

If you add or remove a block in the English page, do the same in the Chinese page first. An empty block (``` and ```) is
enough. If the numbers of blocks differ, the program prints the page and ends with exit code 1.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
_BLOCK = re.compile(r"^( *)```[^\n`]*\n(?:.*?\n)??\1```$", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[str]:
    """Returns the code blocks with their fences."""
    return [match[0] for match in _BLOCK.finditer(text)]


def pages() -> list[str]:
    """Returns all translated pages."""
    return sorted(path.relative_to(DOCS / "zh").as_posix() for path in DOCS.glob("zh/**/*.md"))


def copy_code(page: str) -> bool:
    """Copies the blocks of one page. Returns False if the numbers of blocks differ."""
    translated = DOCS / "zh" / page
    text = translated.read_text(encoding="utf-8")
    code = blocks((DOCS / page).read_text(encoding="utf-8"))
    if len(code) != len(blocks(text)):
        return False
    following = iter(code)
    translated.write_text(_BLOCK.sub(lambda _: next(following), text), encoding="utf-8")
    return True


def main() -> int:
    differing = [page for page in sys.argv[1:] or pages() if not copy_code(page)]
    for page in differing:
        print(f"docs/{page} and docs/zh/{page} have different numbers of blocks of code", file=sys.stderr)
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
