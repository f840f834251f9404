"""Copies the blocks of code of docs/PAGE.md into docs/zh/PAGE.md, one for one: both languages show the same code.

    python tools/translated_code.py             # all pages that are translated
    python tools/translated_code.py client.md   # some

When blocks were added or taken away in English, do the same in Chinese first: an empty block (``` and ```) is enough.
It ends with exit code 1 and names the pages whose numbers of blocks differ.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
_BLOCK = re.compile(r"^( *)```[^\n`]*\n(?:.*?\n)??\1```$", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[str]:
    """The blocks of code, with their fences."""
    return [match[0] for match in _BLOCK.finditer(text)]


def pages() -> list[str]:
    """All that are translated."""
    return sorted(path.relative_to(DOCS / "zh").as_posix() for path in DOCS.glob("zh/**/*.md"))


def copy_code(page: str) -> bool:
    """False when the pages have different numbers of blocks."""
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
