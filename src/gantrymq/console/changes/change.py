"""Change: what may be done by clicking, a function of typed arguments that says what it did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gantrymq.console.eye import Eye
from gantrymq.console.pages import BadArguments
from gantrymq.console.works import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """`name` is its address, /do/NAME. Values of `secrets` are never written down."""

    name: str
    arguments: type[msgspec.Struct]
    secrets: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(_Named):
    """One that its form's answer waits for; `back` is the page that it leads to."""

    perform: Callable[[Eye, Any], Awaitable[str]]
    back: Callable[[Any], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongChange(_Named):
    """One that goes on when its form was answered: it tells a Work how far it is.

    `check` raises BadArguments for arguments that it can't take, `about` says what it is about.
    """

    check: Callable[[Any], object]
    about: Callable[[Any], str]
    perform: Callable[[Eye, Any, Work], Awaitable[str]]


def check_typed(name: str, typed: str) -> None:
    """Raises BadArguments."""
    if name != typed:
        raise BadArguments(f"to delete {name}, type its name; this was {typed!r}")
