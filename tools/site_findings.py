"""Lists the findings that `gantry doctor` can report, from its source code: text, cause and remedy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCTOR = Path(__file__).parent.parent / "src" / "gantrymq" / "client" / "doctor"
#: Placeholder for the variable parts of a text, such as the name of a broker or a topic.
SOMETHING = "…"


class Found(NamedTuple):
    what: str
    why: str
    remedy: str


def findings() -> list[Found]:
    """Returns all problems and warnings with literal texts in the code. Composed findings use several of these."""
    found = {
        each: None
        for path in sorted(DOCTOR.glob("*.py"))
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        for each in _of(function)
    }
    return list(found)


def _of(function: ast.FunctionDef) -> Iterator[Found]:
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id="problem" | "warning"), args=[what, why, remedy]):
                words = [_text(each, function) for each in (what, why, remedy)]
            case ast.Return(value=ast.Tuple(elts=[why, remedy])) if function.name == "why_unreachable":
                words = ["a server can't be reached", _text(why, function), _text(remedy, function)]
            case _:
                continue
        if all(re.search(r"\w", text) for text in words):
            yield Found(*(" ".join(text.split()) for text in words))


def _text(node: ast.expr, function: ast.FunctionDef) -> str:
    """Returns the text of an expression, or "" if it has none. A name stands for the value assigned in the function."""
    match node:
        case ast.Constant(value=str(text)):
            return text.replace("{server}", "the server").replace("{option}", "the option")
        case ast.JoinedStr(values=parts):
            told = [_text(part, function) or SOMETHING for part in parts]
            return re.sub(rf"{SOMETHING}{{2,}}", SOMETHING, "".join(told))
        case ast.FormattedValue(value=ast.Name(id="what") as name):
            return _text(name, function)
        case ast.Name(id=name):
            for each in ast.walk(function):
                match each:
                    case ast.Assign(targets=[ast.Name(id=assigned)], value=value) if assigned == name:
                        return _text(value, function) if not isinstance(value, ast.Name) else ""
    return ""
