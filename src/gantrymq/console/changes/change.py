"""A change: a function of typed arguments that returns its outcome as text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.operations import Operation
from gantrymq.console.pages import BadArguments
from gantrymq.protocol.attributes import parse_attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """The common attributes of changes. The path of a change is /do/NAME. The audit log masks values of `secrets`."""

    name: str
    arguments: type[msgspec.Struct]
    secrets: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(_Named):
    """A change that is complete before the response. `back` is the page that follows."""

    perform: Callable[[ClusterView, Any], Awaitable[str]]
    back: Callable[[Any], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongChange(_Named):
    """A change that runs in the background, as an Operation.

    `check` raises BadArguments for invalid arguments. `about` names the changed object.
    """

    check: Callable[[Any], object]
    about: Callable[[Any], str]
    perform: Callable[[ClusterView, Any, Operation], Awaitable[str]]


def changed_attributes(text: str) -> dict[str, str]:
    """Returns the changes of attributes in a text such as "+a=b,-c". Raises BadArguments for other text."""
    try:
        return parse_attributes(text)
    except ValueError as e:
        raise BadArguments(f"attributes: {e}") from None


def check_typed(name: str, typed: str) -> None:
    """Raises BadArguments if the user did not type `name` as the confirmation."""
    if name != typed:
        raise BadArguments(f"to delete {name}, type its name: {typed!r} is another one")
