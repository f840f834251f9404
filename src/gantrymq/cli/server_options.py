"""The options of `gantry namesrv`, `broker`, `controller` and `proxy`, and a fast parser for them.

The start of a server takes as long as its imports, and typer takes longer to import than a broker. So typer is only
used for help, for invalid command lines, and for completion.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

COMMANDS = {
    "namesrv": "Run a NameServer.",
    "broker": "Run a broker, master or slave.",
    "controller": "Run a controller: it elects the masters of brokers with enableControllerMode=true.",
    "proxy": "Run a proxy: clients that speak gRPC reach brokers by it.",
}


_PROCESSES = "So many processes on the same ports, one for each processor, say."


class ServerOption(NamedTuple):
    """An option of a server. `kind` is Path, str, int, or bool for a flag."""

    dest: str
    flags: tuple[str, ...]
    kind: type
    help: str
    metavar: str | None = None


class ServerOptions(NamedTuple):
    """The parsed options of a server."""

    config: Path | None = None
    namesrv_addr: str | None = None
    print_config: bool = False
    stop_on_eof: bool = False
    processes: int | None = None


def server_options(command: str) -> list[ServerOption]:
    """Returns the options of one of the COMMANDS. Their flags are those of Java's start scripts."""
    name_servers = {
        "namesrv": "Accepted, as Java's start scripts pass it; a NameServer asks no other.",
        "broker": "The NameServers to register with.",
        "controller": "Accepted, as Java's start scripts pass it; a controller asks no NameServer.",
        "proxy": "The NameServers that know the brokers.",
    }[command]
    configuration = "Configuration, Java .properties."
    if command == "proxy":
        configuration = "Configuration, JSON as rmq-proxy.json."
    flags = ("-c", "--config", "-pc") if command == "proxy" else ("-c", "--config")
    more = [] if command != "proxy" else [ServerOption("processes", ("--processes",), int, _PROCESSES, "COUNT")]
    return [
        *more,
        ServerOption("config", flags, Path, configuration, "FILE"),
        ServerOption("namesrv_addr", ("-n", "--namesrvAddr"), str, name_servers, "HOST:PORT;..."),
        ServerOption("print_config", ("-p", "--printConfig"), bool, "Print all keys and exit."),
        ServerOption("stop_on_eof", ("--stop-on-eof",), bool, "Stop, too, when standard input is closed."),
    ]


class _NotPlainError(Exception):
    pass


class _QuickParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _NotPlainError(message)


def parse_quickly(command: str, arguments: Sequence[str]) -> ServerOptions | None:
    """Parses a command line. Returns None if typer must handle it: for help, and if it is invalid."""
    parser = _QuickParser(add_help=False, allow_abbrev=False)
    for option in server_options(command):
        settings: dict[str, Any] = {"action": "store_true"} if option.kind is bool else {"type": option.kind}
        parser.add_argument(*option.flags, dest=option.dest, **settings)
    try:
        return ServerOptions(**vars(parser.parse_args(arguments)))
    except _NotPlainError:
        return None
