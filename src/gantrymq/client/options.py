"""Options of clients. Each client has a frozen dataclass, which is the only definition of its options.

`takes` derives the constructor's signature and help text from the dataclass. `Options` checks the values.
`tools/site_options.py` derives the tables of the documentation. Decision record: docs/decisions/client-options.md.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields
from enum import Enum
from numbers import Integral, Real
from typing import Any, Concatenate, ParamSpec, TypeVar

from gantrymq.client.credentials import Credentials, rpc_hooks
from gantrymq.client.middleware import Middleware
from gantrymq.client.namespace import wrap_namespace
from gantrymq.errors import ClientError, IllegalMessage
from gantrymq.protocol.topic_name import group_problem
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.connection import RpcHook
from gantrymq.remoting.name_server_discovery import is_discovery_url, split_addresses
from gantrymq.system import tls
from gantrymq.times import duration_s

P = ParamSpec("P")
T = TypeVar("T")
ClientT = TypeVar("ClientT")
OptionsT = TypeVar("OptionsT", bound="Options")


def option(default: T, doc: str, *, minimum: float | None = None, maximum: float | None = None) -> T:
    """Returns a field of an options class. `doc` explains it, with its unit.

    A field with a bound accepts whole numbers. If its default is a float, it accepts any number. If its default is
    None, it also accepts None.
    """
    return field(default=default, metadata={"doc": doc, "minimum": minimum, "maximum": maximum})


def duration(default: T, doc: str, *, minimum: float = 0.0, maximum: float | None = None) -> T:
    """Returns a field with a duration: a number of seconds, or a timedelta. The bounds are in seconds."""
    metadata = {"doc": doc, "minimum": minimum, "maximum": maximum, "duration": True}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Options:
    """Base of the options classes. The constructor raises an error for an invalid value."""

    def __post_init__(self) -> None:
        for each in fields(self):
            _check_number(each, getattr(self, each.name))
        self._check()

    def _check(self) -> None:
        """Raises a GantryError for invalid values that the bounds do not exclude. An override calls its base first."""


@dataclass(frozen=True, slots=True)
class TransportOptions(Options):
    """Options of all clients."""

    _: KW_ONLY
    ssl_context: tls.SSLContext | None = option(None, "Encrypts the connections; without it they are plain.")
    credentials: Credentials | None = option(None, "Keys that sign each request; without them it is not signed.")
    hooks: Sequence[RpcHook] = option(
        (), "Called before each request to a server and after each response, also for heartbeats and pulls."
    )

    @property
    def rpc_hooks(self) -> Sequence[RpcHook]:
        """`hooks`, followed by the hook that signs with `credentials`."""
        return rpc_hooks(self.credentials, self.hooks)

    def _check(self) -> None:
        if not isinstance(self.ssl_context, tls.SSLContext | None):
            raise ClientError(f"ssl_context={self.ssl_context!r}: must be an ssl.SSLContext or None")
        if not isinstance(self.credentials, Credentials | None):
            # The error does not quote the value, which may be a secret.
            raise ClientError("credentials: must be Credentials(access_key, secret_key) or None")
        if not isinstance(self.hooks, Sequence):
            raise ClientError(f"hooks={self.hooks!r}: must be a list, also for one hook")


#: Documentation of the option `name_servers`.
NAME_SERVERS_DOC = (
    "NameServers: a list of HOST:PORT, one string with `;` between them, or the URL of a page that lists them."
)


@dataclass(frozen=True, slots=True)
class ClientOptions(TransportOptions):
    """Options of producers and consumers."""

    name_servers: Sequence[str] | str = field(metadata={"doc": NAME_SERVERS_DOC})
    group: str = field(metadata={"doc": "Name of the group."})
    _: KW_ONLY
    namespace: str = option("", "Prefix of topics and of the group.")
    middleware: Sequence[Middleware] = option((), "Runs around sends, handlers and receives; outermost first.")
    unit_mode: bool = option(
        False,
        "Marks the topics that a broker creates for this client as topics of a unit, which NameServers list "
        "separately (unitMode).",
    )
    unit_name: str = option(
        "",
        "Name of the unit, in deployments with several of them (unitName). It is a part of the client id, and of the "
        "URL of the page that lists the NameServers.",
    )

    @property
    def wire_group(self) -> str:
        """The group with its namespace, as brokers see it."""
        return wrap_namespace(self.namespace, self.group)

    def _check(self) -> None:
        TransportOptions._check(self)
        if not isinstance(self.group, str):
            raise IllegalMessage(f"group={self.group!r}: must be the name of a group")
        if problem := group_problem(self.group):
            raise IllegalMessage(problem)
        if not isinstance(self.unit_name, str) or not re.fullmatch(r"[\w.-]*", self.unit_name, re.ASCII):
            raise ClientError(f"unit_name={self.unit_name!r}: must consist of letters, digits, '.', '_' and '-'")
        if not isinstance(self.middleware, Sequence) or not all(isinstance(one, Middleware) for one in self.middleware):
            raise ClientError(f"middleware={self.middleware!r}: must be a list of objects of subclasses of Middleware")
        addresses = self.name_servers
        if isinstance(addresses, str):
            if is_discovery_url(addresses):
                return
            addresses = split_addresses(addresses)
        if not addresses:
            raise ClientError("no NameServer given: pass at least one HOST:PORT")
        for address in addresses:
            try:
                parse_address(address)
            except (ValueError, AttributeError):
                raise ClientError(f"name_servers: {address!r} is no HOST:PORT; NameServers listen at 9876") from None


def takes(
    options: Callable[P, OptionsT],
) -> Callable[[Callable[[ClientT, OptionsT], None]], Callable[Concatenate[ClientT, P], None]]:
    """Decorates an `__init__` whose only argument is an options object. Callers pass its fields as arguments."""

    def decorate(init: Callable[[ClientT, OptionsT], None]) -> Callable[Concatenate[ClientT, P], None]:
        def __init__(self: ClientT, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, options(*args, **kwargs))

        signature = inspect.signature(options)
        client = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        derived: Any = __init__
        derived.__signature__ = signature.replace(parameters=[client, *signature.parameters.values()])
        derived.__doc__, derived.options = _documentation(options), options
        derived.__module__, derived.__qualname__ = init.__module__, init.__qualname__
        return __init__

    return decorate


def documented(options: type[OptionsT]) -> type[OptionsT]:
    """Sets the help text of an options class whose objects users create themselves."""
    options.__init__.__doc__ = _documentation(options)
    return options


def arguments(options: Options, kind: type[Options]) -> dict[str, Any]:
    """Returns the fields that `options` inherits from its base class `kind`, as keyword arguments."""
    return {each.name: getattr(options, each.name) for each in fields(kind)}


def in_order(options: Any) -> list[Field[Any]]:
    """Returns the fields of an options class in the order of the constructor's arguments."""
    by_name = {each.name: each for each in fields(options)}
    return [by_name[name] for name in inspect.signature(options).parameters]


def default_text(each: Field[Any]) -> str:
    """Returns an option's default as text for the documentation. Empty if there is no default or an empty one."""
    if each.default in (MISSING, None, "", ()):
        return ""
    if isinstance(each.default, Enum):
        return f"{type(each.default).__name__}.{each.default.name}"
    return str(getattr(each.default, "__name__", repr(each.default)))


def _documentation(options: Any) -> str:
    lines = ["Raises ClientError or IllegalMessage if a value is not possible. Opens no connection.", "", "Args:"]
    for each in in_order(options):
        default = f" Default: {default_text(each)}." if default_text(each) else ""
        text = f"{each.name}: {each.metadata['doc']}{default}"
        lines += textwrap.wrap(text, 112, initial_indent="    ", subsequent_indent="        ")
    return "\n".join(lines)


def _check_number(each: Field[Any], value: object) -> None:
    minimum, maximum = each.metadata.get("minimum"), each.metadata.get("maximum")
    if (minimum is None and maximum is None) or (value is None and each.default is None):
        return
    if each.metadata.get("duration"):
        seconds = duration_s(each.name, value)
        if seconds < (minimum or 0.0) or (maximum is not None and seconds > maximum):
            bounds = f"at least {minimum:g}" if maximum is None else f"{minimum:g} to {maximum:g}"
            raise ClientError(f"{each.name}={value!r}: must be {bounds} seconds")
        return
    kind = Real if isinstance(each.default, float) else Integral
    if not isinstance(value, kind) or not (
        (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
    ):
        what = "a number" if kind is Real else "a whole number"
        bounds = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
        raise ClientError(f"{each.name}={value!r}: must be {what}, {bounds}")
