"""Finds prose that is hard to read: in docs, in docstrings and comments, and in names.

.venv/bin/python tools/prose.py      # prints the findings; exit code 1 if there are any
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
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
_MODULE_ROOTS = (
    "bench",
    "fuzz",
    "interop",
    "native/fuzz/fuzz_targets",
    "native/src",
    "sim",
    "src/gantrymq",
    "tests",
    "tools",
)
_FIRST_WORDS = re.compile(r"(Of|What|Who|Whoever|Those)\b")
_PHRASES = re.compile(r"\b(who has|what has|who is told|is told|nobody knows|knows of)\b", re.IGNORECASE)
#: In texts of errors and of log lines.
_MESSAGES = re.compile(r"\b(told|tells?|hears?|heard|nobody|whoever|what has|who has|given up|goes on|comes? again)\b")
_LOG_CALLS = frozenset({"debug", "info", "warning", "error", "exception"})
_HISTORY = re.compile(r"\b(now|no longer|used to be|(?:than|as) before|20\d\d-\d\d-\d\d)\b", re.IGNORECASE)
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


class Finding(NamedTuple):
    """A finding of a rule in a line of a file."""

    path: str
    line: int
    rule: str
    text: str


def findings() -> Iterator[Finding]:
    """Yields the findings in the docs and the source files."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in sorted(pages):
        path = page.relative_to(ROOT).as_posix()
        if ".zh" not in page.name and not path.startswith("docs/zh/"):
            yield from in_docs(path, page.read_text())
    for module in sorted((ROOT / "src" / "gantrymq").rglob("*.py")):
        if not module.name.endswith("_pb2.py"):
            yield from in_source(module.relative_to(ROOT).as_posix(), module.read_text())
    for root in _MODULE_ROOTS:
        for module in sorted([*(ROOT / root).rglob("*.py"), *(ROOT / root).rglob("*.rs")]):
            # Build results and checkouts of other commits.
            if "target" not in module.relative_to(ROOT).parts:
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
            if path not in ("CHANGELOG.md", "docs/measurements.md"):
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
                parts = {part.lower() for part in _NAME_PART.findall(node.name.replace("machine_room", ""))}
                for part in sorted(parts & _BANNED_WORDS):
                    yield Finding(path, line, "name", f"{node.name}: {part}")
        elif isinstance(node, ast.Raise) or _is_log_call(node):
            for each in ast.walk(node):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    for match in _MESSAGES.finditer(each.value):
                        yield Finding(path, each.lineno, "message", f"{match.group()}: {each.value[:60]}")
    stem = Path(path).stem
    for part in sorted(set(stem.split("_")) & _BANNED_WORDS):
        yield Finding(path, 1, "name", f"module {stem}: {part}")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _in_words(path, token.start[0], token.string.lstrip("#: "), is_docstring=False)


def _is_log_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOG_CALLS


def _in_words(path: str, line: int, text: str, *, is_docstring: bool) -> Iterator[Finding]:
    if is_docstring and (match := _FIRST_WORDS.match(text)):
        yield Finding(path, line, "docstring", f"begins with {match.group()}: {text.splitlines()[0][:60]}")
    for match in _PHRASES.finditer(text):
        yield Finding(path, line, "phrase", match.group())


def main() -> int:
    found = list(findings())
    for finding in found:
        print(f"{finding.path}:{finding.line}: {finding.rule}: {finding.text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
