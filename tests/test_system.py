"""Tests that the simulated packages use the system only through gantrymq.system.

import-linter checks their imports.
"""

from __future__ import annotations

import ast
from pathlib import Path

import gantrymq

PACKAGE = Path(gantrymq.__file__).parent
PACKAGES = (
    "namesrv",
    "controller",
    "broker",
    "store",
    "remoting",
    "client",
    "background",
    "protocol",
    "auth",
    "filter",
    "replication",
)
#: Functions of pathlib that access the disk.
ON_DISK = {
    *("chmod", "exists", "glob", "hardlink_to", "is_dir", "is_file", "iterdir", "lstat", "mkdir", "read_bytes"),
    *("read_text", "rename", "resolve", "rglob", "rmdir", "samefile", "stat", "symlink_to", "touch", "unlink"),
    *("write_bytes", "write_text"),
}
#: os.DirEntry, which `files.scandir` returns; `files` itself; and the commit log, which has its own `read_bytes`.
ALLOWED = {"entry", "files", "self._log"}
#: Names in `os` that are not system calls.
OF_OS = {"PathLike", "environ", "fspath", "path", "strerror"}


def test_no_other_way_to_the_system() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {what}"
        for name in PACKAGES
        for path in sorted((PACKAGE / name).rglob("*.py"))
        for line, what in uses(ast.parse(path.read_text()))
    ]
    assert found == []


def test_it_sees_them() -> None:
    text = """
open("x")
path.read_bytes()
(root / "a").unlink(missing_ok=True)
os.open("x", 0)
datetime.now()
old.replace(new)
os.path.join("a", "b")
entry.stat()
files.exists(path)
text.replace("a", "b")
"""
    assert [line for line, _ in uses(ast.parse(text))] == [2, 3, 4, 5, 6, 7]


def uses(tree: ast.AST) -> list[tuple[int, str]]:
    """Returns (line, name) of each use of the system."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os" and node.attr not in OF_OS:
            found.append((node.lineno, f"os.{node.attr}"))
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id == "open":
            found.append((node.lineno, "open"))
        if isinstance(function, ast.Attribute):
            whose = ast.unparse(function.value)
            is_rename = function.attr == "replace" and len(node.args) == 1 and not node.keywords
            is_date = function.attr in ("now", "today", "utcnow") and "date" in whose
            if (function.attr in ON_DISK and whose not in ALLOWED) or is_rename or is_date:
                found.append((node.lineno, ast.unparse(function)))
    return sorted(found)
