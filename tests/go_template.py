"""Renders the templates of a Helm chart, for tests on machines without `helm`.

It has the part of Go's text/template, Sprig and Helm that deploy/chart uses. An unknown function or a missing object
raises TemplateError.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_PARTS = re.compile(r"(\{\{-?\s*/\*.*?\*/\s*-?\}\}|\{\{.*?\}\})", re.DOTALL)
_TOKEN = re.compile(r'(\s*)("(?:\\.|[^"\\])*"|[()|]|[^\s()|"]+)')
_ASSIGNMENT = re.compile(r"(\$\w+)(?:\s*,\s*(\$\w+))?\s*:?=\s*(.*)", re.DOTALL)
_BLOCKS = ("if", "with", "range")


class TemplateError(Exception):
    """A template cannot be rendered, or calls `fail`."""


class Node(NamedTuple):
    """Text, an action, or a block with its body and the body of `else`."""

    kind: str
    text: str
    body: list[Node] = []  # noqa: RUF012
    otherwise: list[Node] = []  # noqa: RUF012


class Token(NamedTuple):
    text: str
    follows_space: bool


def _tokens(text: str) -> list[Token]:
    return [Token(found[2], bool(found[1]) or found.start() == 0) for found in _TOKEN.finditer(text.strip())]


def _split(template: str) -> list[tuple[bool, str]]:
    """Returns (is an action, text) for each part. Removes comments, and white space beside {{- and -}}."""
    parts = _PARTS.split(template)
    for number in range(1, len(parts), 2):
        if parts[number].startswith("{{- "):
            parts[number - 1] = parts[number - 1].rstrip()
        if parts[number].endswith(" -}}"):
            parts[number + 1] = parts[number + 1].lstrip()
    actions = [part[2:-2].strip("-").strip() if number % 2 else part for number, part in enumerate(parts)]
    return [(bool(number % 2), part) for number, part in enumerate(actions) if part and not part.startswith("/*")]


class Chart:
    """The templates of a chart, rendered with its values. `settings` replace values: {"broker.replicas": 1}."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        about = yaml.safe_load((directory / "Chart.yaml").read_text())
        values = yaml.safe_load((directory / "values.yaml").read_text())
        for name, value in settings.items():
            *path, last = name.split(".")
            section = values
            for part in path:
                section = section[part]
            section[last] = value
        self._data = {
            "Values": values,
            "Release": {"Name": "mq", "Service": "Helm", "Namespace": "default"},
            "Chart": {name[0].upper() + name[1:]: value for name, value in about.items()},
        }
        self._defined: dict[str, list[Node]] = {}
        self._templates: dict[str, list[Node]] = {}
        for path in sorted((directory / "templates").iterdir()):
            parts = _split(path.read_text())
            self._templates[path.name] = self._parse(parts)
            if parts:
                raise TemplateError(f"{path.name}: {parts[0]} ends no block")

    def render(self) -> dict[str, str]:
        """Returns the text of each file, without those that only define templates."""
        return {
            name: self._run(nodes, self._data, {"$": self._data})
            for name, nodes in self._templates.items()
            if not name.startswith("_")
        }

    def _parse(self, parts: list[tuple[bool, str]]) -> list[Node]:
        """Takes parts up to the end of the block."""
        nodes: list[Node] = []
        while parts:
            is_action, text = parts[0]
            keyword, _, rest = text.partition(" ")
            if is_action and keyword in ("end", "else"):
                break
            parts.pop(0)
            if not is_action:
                nodes.append(Node("text", text))
            elif keyword in _BLOCKS:
                nodes.append(self._block(keyword, rest, parts))
            elif keyword == "define":
                self._defined[json.loads(rest)] = self._parse(parts)
                parts.pop(0)
            else:
                nodes.append(Node("action", text))
        return nodes

    def _block(self, keyword: str, condition: str, parts: list[tuple[bool, str]]) -> Node:
        body = self._parse(parts)
        _, end = parts.pop(0)
        if end == "end":
            return Node(keyword, condition, body)
        if end.startswith("else if "):
            return Node(keyword, condition, body, [self._block("if", end.removeprefix("else if "), parts)])
        otherwise = self._parse(parts)
        parts.pop(0)
        return Node(keyword, condition, body, otherwise)

    def _run(self, nodes: list[Node], dot: Any, variables: dict[str, Any]) -> str:
        output = []
        scope = dict(variables)
        for node in nodes:
            if node.kind == "text":
                output.append(node.text)
                continue
            assignment = _ASSIGNMENT.fullmatch(node.text)
            value = self._pipeline(_tokens(assignment[3] if assignment else node.text), dot, scope)
            if node.kind == "action":
                if assignment:
                    scope[assignment[1]] = value
                else:
                    output.append(_shown(value))
            elif not value:
                output.append(self._run(node.otherwise, dot, scope))
            elif node.kind != "range":
                output.append(self._run(node.body, value if node.kind == "with" else dot, scope))
            else:
                for key, one in sorted(value.items()) if isinstance(value, dict) else enumerate(value):
                    inner = dict(scope)
                    if assignment and assignment[2]:
                        inner |= {assignment[1]: key, assignment[2]: one}
                    elif assignment:
                        inner[assignment[1]] = one
                    output.append(self._run(node.body, one, inner))
        return "".join(output)

    def _pipeline(self, tokens: list[Token], dot: Any, variables: dict[str, Any]) -> Any:
        piped: list[Any] = []
        depth, first = 0, 0
        for number, token in enumerate([*tokens, Token("|", True)]):
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if token.text == "|" and not depth:
                piped = [self._command(tokens[first:number], dot, variables, piped)]
                first = number + 1
        return piped[0]

    def _command(self, tokens: list[Token], dot: Any, variables: dict[str, Any], piped: list[Any]) -> Any:
        name = tokens[0].text
        is_call = re.fullmatch(r"[a-zA-Z]\w*", name) and name not in ("true", "false")
        rest = tokens[1:] if is_call else tokens
        values: list[Any] = []
        while rest:
            if rest[0].text == "(":
                end = _closing(rest)
                value = self._pipeline(rest[1:end], dot, variables)
                rest = rest[end + 1 :]
                if rest and rest[0].text.startswith(".") and not rest[0].follows_space:
                    value = _field(value, rest.pop(0).text)
                values.append(value)
            else:
                values.append(_operand(rest[0].text, dot, variables))
                rest = rest[1:]
        return self._call(name, [*values, *piped]) if is_call else values[0]

    def _call(self, name: str, arguments: list[Any]) -> Any:
        if name == "include":
            template, data = arguments
            return self._run(self._defined[template], data, {"$": data})
        if name not in _FUNCTIONS:
            raise TemplateError(f"no function {name!r}")
        return _FUNCTIONS[name](*arguments)


def _closing(tokens: list[Token]) -> int:
    """Returns the index of the parenthesis that closes the first one."""
    depth = 0
    for number, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if not depth:
            return number
    raise TemplateError("a parenthesis is not closed")


def _operand(text: str, dot: Any, variables: dict[str, Any]) -> Any:
    if text.startswith('"') or text in ("true", "false") or re.fullmatch(r"-?\d+", text):
        return json.loads(text)
    if text.startswith("."):
        return _field(dot, text)
    name, _, path = text.partition(".")
    return _field(variables[name], f".{path}")


def _field(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        if not isinstance(value, dict):
            raise TemplateError(f"{path}: no object has {name!r}")
        value = value.get(name)
    return value


def _shown(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _fail(text: str) -> None:
    raise TemplateError(text)


def _merge(into: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    for other in others:
        for name, value in other.items():
            into.setdefault(name, value)
    return into


def _indent(count: int, text: str) -> str:
    return "\n".join(" " * count + line for line in text.split("\n"))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": lambda *values: next((value for value in values if not value), values[-1]),
    "deepCopy": copy.deepcopy,
    "default": lambda default, value: value or default,
    "dict": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
    "eq": lambda one, other: one == other,
    "fail": _fail,
    "gt": lambda one, other: one > other,
    "indent": _indent,
    "index": lambda value, key: value[key],
    "int": int,
    "len": len,
    "list": lambda *values: list(values),
    "merge": _merge,
    "nindent": lambda count, text: f"\n{_indent(count, text)}",
    "not": lambda value: not value,
    "printf": lambda form, *values: form % values,
    "quote": lambda value: json.dumps(_shown(value)),
    "regexFindAll": lambda pattern, text, count: re.findall(pattern, text)[: None if count < 0 else count],
    "rest": lambda values: values[1:],
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "toPrettyJson": lambda value: json.dumps(value, indent=2, sort_keys=True),
    "toYaml": lambda value: yaml.safe_dump(value, default_flow_style=False).removesuffix("\n"),
    "trimAll": lambda characters, text: text.strip(characters),
    "uniq": lambda values: list(dict.fromkeys(values)),
    "until": lambda count: list(range(count)),
}
