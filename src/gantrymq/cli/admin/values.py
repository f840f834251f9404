"""Parses and checks the values of options: flags, times, attributes and JSON files."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import typer

from gantrymq.errors import BodyError, ClientError
from gantrymq.protocol.fastjson import decode_json

T = TypeVar("T")

#: mqadmin's format of a time: 2024-05-31#23:59:59:999, in local time.
TIME_FORMAT = "%Y-%m-%d#%H:%M:%S:%f"
#: The help text for options with a time.
TIME_HELP = "ISO 8601 (2024-05-31T23:59, local time unless a zone is given), ms since 1970, or yyyy-MM-dd#HH:mm:ss:SSS"


class TrueFalse(StrEnum):
    """A flag with a value, as in mqadmin: `-o true`."""

    TRUE = "true"
    FALSE = "false"

    def __bool__(self) -> bool:
        return self is TrueFalse.TRUE


def one_target(cluster: str | None, broker: str | None) -> None:
    """Raises typer.BadParameter unless exactly one of cluster and broker is given."""
    if (cluster is None) == (broker is None):
        raise typer.BadParameter("one of the two is needed", param_hint="'-b' / '-c'")


def parse_time(text: str, hint: str) -> int:
    """Returns a time in ms since the epoch. `text` is a number of ms, ISO 8601, or has TIME_FORMAT.

    Raises typer.BadParameter for other text. `hint` is the name of the option in the error.
    """
    try:
        return int(text)
    except ValueError:
        pass
    for read in (datetime.fromisoformat, lambda text: datetime.strptime(text, TIME_FORMAT)):
        try:
            return int(read(text).timestamp() * 1000)
        except (ValueError, OverflowError):
            continue
    raise typer.BadParameter(f"{text!r} is no time: {TIME_HELP}", param_hint=hint)


def parse_attributes(text: str) -> dict[str, str]:
    """Parses attributes such as +a=b,-c into the names and values of a request. Source: `AttributeParser`.

    Raises typer.BadParameter for an item that neither sets nor removes an attribute.
    """
    attributes = {}
    for item in text.split(","):
        name, _, value = item.strip().partition("=")
        if not name:
            continue
        if not (name.startswith("-") or (name.startswith("+") and value)):
            raise typer.BadParameter(f"{item!r}: +name=value sets, -name removes", param_hint="'--attributes'")
        attributes[name] = value
    return attributes


def read_json(path: Path, json_type: type[T]) -> T:
    """Reads a JSON file. Raises ClientError if it can't be read or isn't of `json_type`."""
    try:
        return decode_json(path.read_bytes(), json_type)
    except OSError as e:
        raise ClientError(f"can't read {path}: {e.strerror or e}") from e
    except BodyError as e:
        raise ClientError(f"{path}: {e}") from e
