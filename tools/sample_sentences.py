"""Draws random sentences from docs, docstrings and comments, for a reader who rates whether they are clear.

    python tools/sample_sentences.py --seed 1 [--count 60]

A third of the sentences comes from each kind of text. Each line of the output has the file, the line and the sentence.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\[])")
#: Shorter ones are fragments such as "Raises StoreError.", longer ones are lists or tables.
_WORDS = range(5, 41)

Text = tuple[Path, int, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60, help="number of sentences (%(default)s)")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    sources = [path for path in sorted((ROOT / "src").rglob("*.py")) if "_pb2" not in path.name]
    pages = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "zh" not in path.parts]
    kinds = [
        [text for path in pages for text in paragraphs(path)],
        [text for path in sources for text in docstrings(path)],
        [text for path in sources for text in comments(path)],
    ]
    for texts in kinds:
        for path, line, sentence in chance.sample(list(sentences(texts)), args.count // len(kinds)):
            print(f"{path.relative_to(ROOT)}:{line}: {sentence}")


def sentences(texts: list[Text]) -> Iterator[Text]:
    for path, line, text in texts:
        for sentence in _END.split(" ".join(text.split())):
            if len(sentence.split()) in _WORDS and sentence[-1] in ".!?":
                yield path, line, sentence


def paragraphs(path: Path) -> Iterator[Text]:
    """Yields the paragraphs and list items of a page, without code, tables and headings."""
    text = re.sub(r"^ *(```|~~~).*?^ *\1 *$", lambda m: "\n" * m[0].count("\n"), path.read_text(), flags=re.M | re.S)
    begin, lines = 0, list[str]()
    for number, line in enumerate([*text.split("\n"), ""], 1):
        is_item = re.match(r"\s*([-*]|\d+\.)\s+", line)
        if lines and (is_item or not line.strip()):
            yield path, begin, " ".join(lines)
            lines = []
        if line.strip() and not re.match(r"\s*[|#<!=]|    ", line):
            begin = begin if lines else number
            lines.append(line[is_item.end() :] if is_item else line)


def docstrings(path: Path) -> Iterator[Text]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            for paragraph in text.split("\n\n"):
                yield path, node.body[0].lineno, paragraph


def comments(path: Path) -> Iterator[Text]:
    begin, last, lines = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("#!", "# type:", "# noqa", "# fmt")):
            continue
        line = token.start[0]
        if line != last + 1 and lines:
            yield path, begin, " ".join(lines)
            lines = []
        begin = begin if lines else line
        lines.append(token.string.lstrip("#: "))
        last = line
    if lines:
        yield path, begin, " ".join(lines)


if __name__ == "__main__":
    main()
