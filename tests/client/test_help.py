"""`help()` has a text for all public classes, methods, properties and options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import gantrymq

#: Constants have no documentation of their own.
PUBLIC: dict[str, Any] = {name: thing for name in gantrymq.__all__ if callable(thing := getattr(gantrymq, name))}

#: Members for asyncio programs only: parts of the client, futures, and hooks for subclasses.
FOR_ASYNCIO = {
    "begin_send",
    "send_blocking",
    "client",
    "enqueue",
    "send_alone",
    "sender",
    "notify_in_threads",
}


def is_ours(thing: Any) -> bool:
    return getattr(thing, "__module__", "").startswith("gantrymq")


def words(*documents: str | None) -> set[str]:
    return set(re.findall(r"\w+", " ".join(filter(None, documents))))


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields our own public methods and properties, including those of base classes."""
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        function = getattr(member, "__func__", member)
        if name.startswith("_") or not (isinstance(member, property) or inspect.isfunction(function)):
            continue
        if is_ours(member.fget if isinstance(member, property) else function):
            yield name, member


def arguments(function: Any) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.name not in ("self", "cls") and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]


def gaps(name: str, thing: Any) -> Iterator[str]:
    """Yields the missing parts: documentation of classes and methods, and of their parameters."""
    document = inspect.getdoc(thing)
    if not isinstance(thing, type):
        if not document:
            yield name
        of_all = {"message", "body", "request", *words(document)}
        yield from (f"{name}({argument})" for argument in arguments(thing) if argument not in of_all)
        return
    if not thing.__doc__:
        yield name
    own = inspect.getattr_static(thing, "__init__")
    # Only this package creates errors. Programs use their attributes.
    if inspect.isfunction(own) and is_ours(own) and not issubclass(thing, Exception):
        known = words(document, own.__doc__, *(base.__doc__ for base in thing.__mro__ if is_ours(base)))
        yield from (f"{name}({argument})" for argument in arguments(own) if argument not in known)
    yield from (f"{name}.{member_name}" for member_name, member in members(thing) if not inspect.getdoc(member))


@pytest.mark.parametrize("name", sorted(name for name in PUBLIC if f"Sync{name}" in PUBLIC))
def test_the_synchronous_face_has_the_same(name: str) -> None:
    theirs = dict(members(PUBLIC[f"Sync{name}"]))
    assert {member_name for member_name, _ in members(PUBLIC[name])} - theirs.keys() - FOR_ASYNCIO == set()
    for member_name, member in members(PUBLIC[name]):
        same = theirs.get(member_name)
        if inspect.isfunction(member) and inspect.isfunction(same) and member_name not in ("start", "close"):
            assert arguments(same) == arguments(member), member_name


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_help_says_something(name: str) -> None:
    assert list(gaps(name, PUBLIC[name])) == []
