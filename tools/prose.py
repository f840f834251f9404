"""Finds prose that is hard to read: in docs, in docstrings and comments, and in names.

    .venv/bin/python tools/prose.py              # new findings; exit code 1 if there are any
    .venv/bin/python tools/prose.py --all        # every finding
    .venv/bin/python tools/prose.py --update     # lowers the allowed numbers to the present ones

`prose_allowed.json` has the number of findings that each file may have, for each rule. The numbers can only decrease. A
file with more findings fails. A file with fewer findings also fails until `--update` has lowered its number.

`--update` never adds a vague module name (rule `module`).
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).parent.parent
ALLOWED = Path(__file__).with_name("prose_allowed.json")
MAX_WORDS = 30
MAX_LINE = 120

#: Words that names must not contain, because RocketMQ or the field has a term for each of them.
_BANNED_WORDS = frozenset(
    {
        "bring", "brings", "eye", "handing", "hears", "held", "letters", "outgoing", "returning", "room", "rooms",
        "showing", "shown", "tell", "tells", "told", "unfinished", "untaken", "works",
    }
)  # fmt: skip
#: Parts that no name of a module or package contains. Each was the name of several unrelated modules.
_BANNED_IN_MODULES = ("eye", "held", "letters", "outgoing", "room", "sending", "showing", "waiting", "works")
#: Directories whose modules have names that `_BANNED_IN_MODULES` applies to.
_MODULE_ROOTS = ("bench", "interop", "native/fuzz/fuzz_targets", "native/src", "sim", "src/gantrymq", "tests", "tools")
_FIRST_WORDS = re.compile(r"(Of|What|Who|Whoever|Those)\b")
_PHRASES = re.compile(r"\b(who has|what has|who is told|is told|nobody knows|knows of)\b", re.IGNORECASE)
_HISTORY = re.compile(r"\b(now|no longer|used to be|(?:than|as) before|20\d\d-\d\d-\d\d)\b", re.IGNORECASE)
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


#: A file and a rule.
Key: TypeAlias = tuple[str, str]


class Finding(NamedTuple):
    """A finding of a rule in a line of a file."""

    path: str
    line: int
    rule: str
    text: str


def findings() -> Iterator[Finding]:
    """Yields the findings in the docs and the source files."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "decisions").glob("*.md")]
    for page in sorted(pages):
        if ".zh" not in page.name:
            yield from in_docs(page.relative_to(ROOT).as_posix(), page.read_text())
    for module in sorted((ROOT / "src" / "gantrymq").rglob("*.py")):
        if not module.name.endswith("_pb2.py"):
            yield from in_source(module.relative_to(ROOT).as_posix(), module.read_text())
    for root in _MODULE_ROOTS:
        for module in sorted([*(ROOT / root).rglob("*.py"), *(ROOT / root).rglob("*.rs")]):
            yield from in_module_name(module.relative_to(ROOT).as_posix())


def in_module_name(path: str) -> Iterator[Finding]:
    """Yields the findings in the name of a module and of its packages."""
    for word in _BANNED_IN_MODULES:
        if word in path.rpartition(".")[0]:
            yield Finding(path, 1, "module", word)


def in_docs(path: str, text: str) -> Iterator[Finding]:
    """Yields the findings in the prose of a Markdown page, without code and tables."""
    paragraph: list[str] = []
    first = 0
    is_code = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        is_prose = not is_code and not line.startswith(("    ", "```", "#", "|", "<")) and line.strip() != ""
        if not is_code and len(line) > MAX_LINE and not line.startswith(("|", "    ")) and "](http" not in line:
            yield Finding(path, number, "line", f"{len(line)} characters, at most {MAX_LINE}")
        starts = is_prose and re.match(r"\s*([-*]|\d+\.) ", line)
        if paragraph and (not is_prose or starts):
            yield from _in_paragraph(path, first, " ".join(paragraph))
            paragraph = []
        if is_prose:
            if not paragraph:
                first = number
            paragraph.append(line.strip())
            if path != "CHANGELOG.md":
                for match in _HISTORY.finditer(re.sub(r"`[^`]*`", "", line)):
                    yield Finding(path, number, "history", match.group())


def _in_paragraph(path: str, line: int, text: str) -> Iterator[Finding]:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for sentence in re.split(r"(?<=[.!?:;])\s+", plain):
        count = len(sentence.split())
        if count > MAX_WORDS:
            yield Finding(path, line, "sentence", f"{count} words: {sentence[:60]}")


def in_source(path: str, text: str) -> Iterator[Finding]:
    """Yields the findings in the docstrings, comments and names of a module."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            line = getattr(node, "lineno", 1)
            if docstring:
                yield from _in_words(path, line, docstring, is_docstring=True)
            if not isinstance(node, ast.Module):
                for part in sorted({part.lower() for part in _NAME_PART.findall(node.name)} & _BANNED_WORDS):
                    yield Finding(path, line, "name", f"{node.name}: {part}")
    stem = Path(path).stem
    for part in sorted(set(stem.split("_")) & _BANNED_WORDS):
        yield Finding(path, 1, "name", f"module {stem}: {part}")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _in_words(path, token.start[0], token.string.lstrip("#: "), is_docstring=False)


def _in_words(path: str, line: int, text: str, *, is_docstring: bool) -> Iterator[Finding]:
    if is_docstring and (match := _FIRST_WORDS.match(text)):
        yield Finding(path, line, "docstring", f"begins with {match.group()}: {text.splitlines()[0][:60]}")
    for match in _PHRASES.finditer(text):
        yield Finding(path, line, "phrase", match.group())


def main() -> int:
    parser = argparse.ArgumentParser(description="Finds prose that is hard to read.")
    parser.add_argument("--all", action="store_true", help="print every finding, also the allowed ones")
    parser.add_argument("--update", action="store_true", help="lower the allowed numbers to the present ones")
    args = parser.parse_args()
    found = list(findings())
    counts = Counter((finding.path, finding.rule) for finding in found)
    allowed = {
        (path, rule): number
        for path, rules in json.loads(ALLOWED.read_text() if ALLOWED.exists() else "{}").items()
        for rule, number in rules.items()
    }
    if args.update:
        _write(lowered(counts, allowed))
    for finding in found:
        key = finding.path, finding.rule
        if args.all or (counts[key] > allowed.get(key, 0) and not args.update):
            print(f"{finding.path}:{finding.line}: {finding.rule}: {finding.text}")
    lower = [key for key, number in allowed.items() if counts[key] < number] if not args.update else []
    for path, rule in lower:
        print(f"{path}: {rule}: {counts[path, rule]} instead of {allowed[path, rule]}: run tools/prose.py --update")
    is_worse = any(number > allowed.get(key, 0) for key, number in counts.items())
    return 1 if lower or (is_worse and not args.update) else 0


def lowered(counts: dict[Key, int], allowed: dict[Key, int]) -> dict[Key, int]:
    """Returns the allowed numbers of the present findings. Adds no module with a vague name."""
    return {
        key: min(number, allowed.get(key, number))
        for key, number in counts.items()
        if key in allowed or key[1] != "module"
    }


def _write(counts: dict[Key, int]) -> None:
    tree: dict[str, dict[str, int]] = {}
    for (path, rule), number in sorted(counts.items()):
        tree.setdefault(path, {})[rule] = number
    ALLOWED.write_text(json.dumps(tree, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
