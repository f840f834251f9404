"""Reads and writes Java `.properties` files, and converts them to configuration dataclasses and back.

A configuration class is a plain dataclass:

- The field `flush_disk_type` has Java's key `flushDiskType`. If a key does not follow this rule, the metadata of the
  field contains it: `field(default=..., metadata={"key": "brokerIP1"})`.
- `minimum` and `maximum` in the metadata limit a number. `bounded` creates such a field.
- `from_properties` checks these limits. A class that is also instantiated directly calls `check_bounds`.
- Several classes can share one file, as in Java. Each class reads its own keys, and `unknown_keys` returns the rest.

Sources: java.util.Properties, common/MixAll (properties2Object).
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from gantrymq.errors import ConfigError
from gantrymq.system import files

T = TypeVar("T")

#: Maximum size of a configuration file, in bytes. A larger file is probably not a configuration file.
MAX_FILE_BYTES = 1024 * 1024
#: Java's largest int. The maximum of numbers without a smaller limit.
MAX_INT = (1 << 31) - 1
#: Maximum of configured intervals and timeouts: 24 h, in milliseconds.
DAY_MS = 24 * 3600 * 1000
#: An integer in Java's syntax.
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")

#: A line with its line break.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
# The key ends at the first separator without a backslash before it. Blanks around `=` or `:` are ignored.
_ENTRY = re.compile(r"((?:\\.|[^\\=: \t\f])*+)[ \t\f]*+[=:]?[ \t\f]*+(.*)", re.DOTALL)


# -- properties -------------------------------------------------------------------------------------------------


def load_properties(path: Path) -> dict[str, str]:
    """Reads keys and values of a file. Raises ConfigError if it is unreadable, invalid or exceeds MAX_FILE_BYTES."""
    return parse_properties(read_properties(path), source=str(path))


def read_properties(path: Path) -> str:
    """Reads a file as UTF-8, else as Latin-1. Raises ConfigError if it is unreadable or exceeds MAX_FILE_BYTES."""
    try:
        data = files.read_bytes(path, MAX_FILE_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"can't read the configuration file {path}: {e.strerror or e}") from e
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES} bytes: not a configuration")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse_properties(text: str, *, source: str) -> dict[str, str]:
    """Returns the keys and values of properties text. If a key occurs several times, its last value counts.

    Raises ConfigError for an invalid line or escape, with `source` and the line number.
    """
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"{source} has more than {MAX_FILE_BYTES} characters: not a configuration")
    properties: dict[str, str] = {}
    for number, _, line in _logical_lines(text):
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise ConfigError(f"{source}, line {number}: {line[:100]!r} is no key=value")
        key, value = match.groups()
        try:
            properties[_unescape(key)] = _unescape(value)
        except ValueError as e:
            raise ConfigError(f"{source}, line {number}: {e}") from e
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """Returns properties text for `parse_properties` and Java: one `key=value` per line, sorted by key."""
    return "".join(f"{_entry(key, properties[key])}\n" for key in sorted(properties))


def changed_properties(text: str, changes: Mapping[str, str]) -> str:
    """Returns properties text with changed values. Comments, other lines and the order stay. New keys are appended."""
    lines = _LINE.findall(text)
    missing = dict(changes)
    # The entries are replaced in reverse order, so that a replacement does not shift the lines of entries that follow.
    for first, last, line in reversed(list(_logical_lines(text))):
        match = _ENTRY.fullmatch(line)
        key = _unescape(match[1]) if match is not None else ""
        if key in changes:
            missing.pop(key, None)
            end = "\r\n" if lines[last - 1].endswith("\r\n") else "\n"
            lines[first - 1 : last] = [_entry(key, changes[key]) + end]
    kept = "".join(lines)
    if missing and kept and not kept.endswith(("\n", "\r")):
        kept += "\n"
    if missing and kept.rstrip("\r\n").endswith("\\"):
        # The last line can be continued, so a blank line must follow. After a CR, the first LF belongs to this line.
        kept += "\n\n"
    return kept + format_properties(missing)


def replace_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replaces a file atomically: after a crash, the file has the old or the new content.

    When the function returns, the new content is flushed to disk. If `path` is a symbolic link, the link stays and its
    target is replaced. `files.write_beside` describes the permissions. Raises ConfigError if the write fails.
    """
    try:
        target = files.target(path)
        files.rename(files.write_beside(target, data, mode), target)
        directory = files.open(target.parent, files.O_RDONLY | files.O_DIRECTORY | files.O_CLOEXEC)
        try:
            files.sync_entries(directory)
        finally:
            files.close(directory)
    except OSError as e:
        raise ConfigError(f"can't write {path}: {e.strerror or e}") from e


def _entry(key: str, value: str) -> str:
    return f"{_escape(key, '=: ')}={_escape(value, '')}"


def _logical_lines(text: str) -> Iterable[tuple[int, int, str]]:
    """Yields (first line number, last line number, text) of each entry.

    Comments, blank lines and leading blanks are removed, and continued lines are joined.
    """
    joined, start, number = "", 0, 0
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = line.lstrip(" \t\f")
        if not start:
            if not line or line[0] in "#!":
                continue
            start = number
        # An odd number of backslashes at the end continues the line. In an even number, all of them are escaped.
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined += line[:-1]
            continue
        yield start, number, joined + line
        joined, start = "", 0
    if joined:
        yield start, number, joined


def _unescape(text: str) -> str:
    """Decodes the escapes of a key or value. Raises ValueError for an invalid `\\u` escape."""
    if "\\" not in text:
        return text

    def plain(match: re.Match[str]) -> str:
        code, char = match.groups()
        if code is not None:
            return chr(int(code, 16))
        if char == "u":
            # The error omits the text, which can be a password.
            raise ValueError("\\u needs four hexadecimal digits")
        return _ESCAPES.get(char, char)

    # Joins surrogate pairs: \uD83D\uDE00 is one character.
    unescaped = _ESCAPE.sub(plain, text)
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, separators: str) -> str:
    """Escapes a key or value, including the characters of `separators`."""
    text = text.replace("\\", "\\\\")
    for letter, char in _ESCAPES.items():
        text = text.replace(char, "\\" + letter)
    for separator in separators:
        text = text.replace(separator, "\\" + separator)
    return "\\" + text if text.startswith((" ", "#", "!")) else text


# -- dataclasses ------------------------------------------------------------------------------------------------


def bounded(default: int, minimum: int, maximum: int, *, key: str | None = None) -> Any:
    """Returns a dataclass field for an integer from `minimum` to `maximum`, both included.

    `key` is Java's key if it does not follow from the name of the field.
    """
    metadata: dict[str, Any] = {"minimum": minimum, "maximum": maximum}
    return field(default=default, metadata=metadata if key is None else metadata | {"key": key})


def check_bounds(config: object) -> None:
    """Raises ConfigError if a number is outside its limits. The error text has the key, the value and the limits."""
    for each in fields(config):  # type: ignore[arg-type]
        problem = _bounds_problem(each, getattr(config, each.name))
        if problem:
            raise ConfigError(problem)


def _bounds_problem(each: Field[Any], value: Any) -> str:
    """Returns an error text if `value` is outside the limits of the field, otherwise an empty string."""
    minimum, maximum = each.metadata.get("minimum"), each.metadata.get("maximum")
    if (minimum is None or value >= minimum) and (maximum is None or value <= maximum):
        return ""
    bounds = " and ".join(
        [f"at least {minimum}"] * (minimum is not None) + [f"at most {maximum}"] * (maximum is not None)
    )
    return f"{property_key(each)}={str(value)[:200]}: must be {bounds}"


@cache
def _hints(cls: type) -> dict[str, Any]:
    # Cached, because the evaluation of a broker configuration's type hints takes some milliseconds.
    return typing.get_type_hints(cls)


def from_properties(cls: type[T], properties: Mapping[str, str], *, source: str) -> T:
    """Creates an instance of the dataclass `cls` from properties.

    Fields without a property get their defaults. Properties of other classes are ignored.

    Supported types: int, float, bool, str, Path, list[str] (separated by `;`), list[Path] (separated by `,`, as
    `MixAll.MULTI_PATH_SPLITTER`) and Enum (by value), also with `| None`.

    Raises ConfigError if a value is invalid, or if a key without a default is missing. The error text has the key, the
    value and `source`.
    """
    hints = _hints(cls)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for each in fields(cls):  # type: ignore[arg-type]
        key = property_key(each)
        text = properties.get(key)
        if text is not None:
            values[each.name] = _value(each, hints[each.name], text.strip(), source)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{source}: the key {key} is missing")
    return cls(**values)


def to_properties(config: object) -> dict[str, str]:
    """Returns the values of `config` as text, by Java's keys. Omits fields whose value is None."""
    properties: dict[str, str] = {}
    for each in fields(config):  # type: ignore[arg-type]
        value = getattr(config, each.name)
        if value is not None:
            properties[property_key(each)] = _text(value)
    return properties


def unknown_keys(classes: Iterable[type], properties: Mapping[str, str]) -> list[str]:
    """Returns the keys that belong to none of the dataclasses, sorted. Callers can warn about them."""
    known = {property_key(each) for cls in classes for each in fields(cls)}
    return sorted(properties.keys() - known)


def property_key(each: Field[Any]) -> str:
    """Returns Java's key of a dataclass field."""
    key: str | None = each.metadata.get("key")
    if key is not None:
        return key
    first, *rest = each.name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def _value(each: Field[Any], hint: Any, text: str, source: str) -> Any:
    """Returns the value of a field from its text. Raises ConfigError if it is invalid or outside its limits."""
    hint = _without_none(hint)
    try:
        value = _parse(hint, text)
    except ValueError as e:
        raise ConfigError(f"{source}: {property_key(each)}={text[:200]}: {e}") from e
    problem = _bounds_problem(each, value)
    if problem:
        raise ConfigError(f"{source}: {problem}")
    return value


def _parse(hint: Any, text: str) -> Any:
    """Converts text to the type `hint`. Raises ValueError."""
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("must be true or false")
        return text.lower() == "true"
    if hint is int:
        if not _NUMBER.fullmatch(text):
            raise ValueError("must be a whole number")
        return int(text)
    if hint is float:
        try:
            return float(text)
        except ValueError as e:
            raise ValueError("must be a number") from e
    if hint is Path:
        return Path(text).expanduser()
    if hint == list[str]:
        return [part.strip() for part in text.split(";") if part.strip()]
    if hint == list[Path]:
        if "\0" in text:
            raise ValueError("must not contain a NUL character")
        return [Path(part.strip()).expanduser() for part in text.split(",") if part.strip()]
    if isinstance(hint, type) and issubclass(hint, Enum):
        by_text = {str(member.value): member for member in hint}
        if text not in by_text:
            raise ValueError(f"must be one of {', '.join(by_text)}")
        return by_text[text]
    return text


def _without_none(hint: Any) -> Any:
    """Returns T for the type `T | None`. Returns other types unchanged."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (hint,) = [part for part in typing.get_args(hint) if part is not types.NoneType]
    return hint


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ("," if value and isinstance(value[0], Path) else ";").join(map(str, value))
    if isinstance(value, Enum):
        return str(value.value)
    return str(value)
