"""The options of `gantry namesrv`, `broker`, `controller` and `proxy`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gantrymq.cli.plain_options import PlainOption

COMMANDS = {
    "namesrv": "Run a NameServer.",
    "broker": "Run a broker, master or slave.",
    "controller": "Run a controller: it elects the masters of brokers with enableControllerMode=true.",
    "proxy": "Run a proxy: clients that speak gRPC reach brokers by it.",
}


#: Texts of --processes.
_PROCESSES = {
    "broker": "Run so many brokers, for example one per processor core. Names, ports and directories are numbered.",
    "proxy": "Run so many processes on the same ports, for example one per processor core.",
}


class ServerOptions(NamedTuple):
    """The parsed options of a server."""

    config: Path | None = None
    namesrv_addr: str | None = None
    print_config: bool = False
    stop_on_eof: bool = False
    processes: int | None = None


def server_options(command: str) -> list[PlainOption]:
    """Returns the options of one of the COMMANDS. They have the flags of Java's start scripts."""
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
    more = []
    if text := _PROCESSES.get(command):
        more.append(PlainOption("processes", ("--processes",), int, text, "COUNT"))
    return [
        *more,
        PlainOption("config", flags, Path, configuration, "FILE"),
        PlainOption("namesrv_addr", ("-n", "--namesrvAddr"), str, name_servers, "HOST:PORT;..."),
        PlainOption("print_config", ("-p", "--printConfig"), bool, "Print all keys and exit."),
        PlainOption("stop_on_eof", ("--stop-on-eof",), bool, "Stop, too, when standard input is closed."),
    ]
