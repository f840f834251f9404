"""help() says something about what is public: classes, methods, properties and what they are made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import gantrymq

PUBLIC: dict[str, Any] = {
    name: getattr(gantrymq, name)
    for name in (
        "AclHook",
        "AdminClient",
        "CompressionType",
        "LocalTransactionState",
        "Message",
        "MessageQueue",
        "Producer",
        "SendContext",
        "SendResult",
        "SendStatus",
        "SyncLitePullConsumer",
        "SyncProducer",
        "SyncPushConsumer",
        "SyncSimpleConsumer",
        "SyncTransactionProducer",
        "TransactionListener",
        "TransactionProducer",
        "TransactionSendResult",
        "reply_message",
        "select_by_hash",
        "select_by_machine_room",
        "select_randomly",
    )
}


def is_ours(thing: Any) -> bool:
    return getattr(thing, "__module__", "").startswith("gantrymq")


def words(*documents: str | None) -> set[str]:
    return set(re.findall(r"\w+", " ".join(filter(None, documents))))


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that are ours, of bases too."""
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
    """What isn't said: what classes and methods are for, and what is given to a class or function."""
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
    if inspect.isfunction(own) and is_ours(own):
        known = words(document, own.__doc__, *(base.__doc__ for base in thing.__mro__ if is_ours(base)))
        yield from (f"{name}({argument})" for argument in arguments(own) if argument not in known)
    yield from (f"{name}.{member_name}" for member_name, member in members(thing) if not inspect.getdoc(member))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_help_says_something(name: str) -> None:
    assert list(gaps(name, PUBLIC[name])) == []
