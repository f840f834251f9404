"""Parses and checks the values of mqadmin's options: flags, times, attributes and JSON files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import typer

from gantrymq.cli.values import time_of
from gantrymq.errors import BodyError, ClientError
from gantrymq.protocol import attributes
from gantrymq.protocol.fastjson import decode_json

T = TypeVar("T")


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
    """Returns a time in ms since the epoch, like `time_of`.

    Raises typer.BadParameter for other text. `hint` is the name of the option in the error.
    """
    try:
        return time_of(text)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint=hint) from None


def parse_attributes(text: str) -> dict[str, str]:
    """Parses the option `--attributes`. Raises typer.BadParameter for an item that is no change of an attribute."""
    try:
        return attributes.parse_attributes(text)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="'--attributes'") from None


def read_json(path: Path, json_type: type[T]) -> T:
    """Reads a JSON file. Raises ClientError if it can't be read or isn't of `json_type`."""
    try:
        return decode_json(path.read_bytes(), json_type)
    except OSError as e:
        raise ClientError(f"can't read {path}: {e.strerror or e}") from e
    except BodyError as e:
        raise ClientError(f"{path}: {e}") from e
