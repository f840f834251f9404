"""Options as data, and a fast parser for them.

A command whose options are data starts without typer, which takes longer to import than a broker, and without pydantic,
which typer imports for each option with a value. typer only handles help, invalid command lines and completion
(`options.register`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from gantrymq.errors import GantryError


class PlainOption(NamedTuple):
    """An option of a command.

    Attributes:
        dest: The name of its value.
        flags: Its flags. Empty for the arguments of the command: one or more, as a list.
        kind: Path for a file, str, int, or bool for a flag.
        help: Its help text.
        metavar: The name of its value in the help.
        default: The value without the option. A flag is false by default.
        minimum: The smallest valid int.
        shown_default: The default as the help shows it. None shows `default`.
    """

    dest: str
    flags: tuple[str, ...]
    kind: type
    help: str
    metavar: str | None = None
    default: Any = None
    minimum: int | None = None
    shown_default: str | None = None


NAME_SERVERS = PlainOption(
    "name_servers",
    ("-n", "--namesrvAddr"),
    str,
    "The NameServers.",
    "HOST:PORT;...",
    shown_default="the context's, else NAMESRV_ADDR, else the current context's, else 127.0.0.1:9876",
)
CONTEXT = PlainOption("context", ("--context",), str, "A cluster of gantry context list; else GANTRY_CONTEXT.", "NAME")
TLS_CONFIG = PlainOption(
    "tls_config",
    ("--tls-config",),
    Path,
    "Connect with TLS: Java's tls.properties (tls.client.trustCertPath, tls.client.authServer ...).",
    "FILE",
)
ACL_CONFIG = PlainOption(
    "acl_config",
    ("--acl-config",),
    Path,
    "Sign requests: mqadmin's tools.yml (accessKey, secretKey); else $ROCKETMQ_HOME/conf/tools.yml if it is there.",
    "FILE",
)


class InvalidOption(GantryError):
    """Options that exclude each other, or a value that cannot be parsed.

    Attributes:
        hint: The options, as in the error of the command line.
    """

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


class _NotPlainError(Exception):
    pass


class _QuickParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _NotPlainError(message)


def parse_quickly(options: Sequence[PlainOption], arguments: Sequence[str]) -> dict[str, Any] | None:
    """Parses a command line. Returns None for help and for an invalid command line, which typer must handle."""
    parser = _QuickParser(add_help=False, allow_abbrev=False)
    for option in options:
        if not option.flags:
            parser.add_argument(option.dest, nargs="+", type=option.kind)
        elif option.kind is bool:
            parser.add_argument(*option.flags, dest=option.dest, action="store_true")
        else:
            parser.add_argument(*option.flags, dest=option.dest, type=option.kind, default=option.default)
    try:
        values = vars(parser.parse_args(arguments))
    except _NotPlainError:
        return None
    for option in options:
        value = values[option.dest]
        if option.minimum is not None and value is not None and value < option.minimum:
            return None
        # An option for a file refuses a directory.
        if isinstance(value, Path) and value.is_dir():
            return None
    return values
