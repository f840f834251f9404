"""The typer application with all commands of `gantry`. It imports only the module of the command that is run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import typer
from typer import completion

from gantrymq.cli.lazy import Lazy, LazyGroup, load, new_app

_PACKAGE = "gantrymq.cli"
#: The environment variable with which a shell requests completions.
_COMPLETE = "_GANTRY_COMPLETE"


class GantryGroup(LazyGroup):
    """The group of all commands. For a misspelt name, or a name of `gantry admin`, the error has similar names."""

    table: ClassVar = {
        "up": Lazy(f"{_PACKAGE}.cluster_commands", "Run a NameServer and brokers on this machine until Ctrl-C."),
        "produce": Lazy(f"{_PACKAGE}.produce", "Send the lines of files or of standard input, each as a message."),
        "consume": Lazy(
            f"{_PACKAGE}.consume_command", "Write topics' messages to standard output, until Ctrl-C, --count or -e."
        ),
        "request": Lazy(f"{_PACKAGE}.request", "Send a request and write its reply to standard output."),
        "reply": Lazy(f"{_PACKAGE}.reply", "Answer the requests that come to a topic from now on."),
        "doctor": Lazy(
            f"{_PACKAGE}.cluster_commands",
            "Find problems of a cluster, a topic, a group or a proxy, and say how to fix them.",
        ),
        "topology": Lazy(
            f"{_PACKAGE}.cluster_commands",
            "Show clusters, brokers, topics and rates. Refresh every second until Ctrl-C.",
        ),
        "console": Lazy(f"{_PACKAGE}.console", "Show a cluster in a browser, until Ctrl-C."),
        "admin": Lazy(f"{_PACKAGE}.admin.app", "Look at a cluster and change it, with mqadmin's commands and flags."),
        "context": Lazy(f"{_PACKAGE}.context_commands", "Name clusters with their addresses, keys and TLS settings."),
        "namesrv": Lazy(f"{_PACKAGE}.server_commands", "Run a NameServer."),
        "broker": Lazy(f"{_PACKAGE}.server_commands", "Run a broker."),
        "controller": Lazy(f"{_PACKAGE}.server_commands", "Run a controller: it elects the masters of brokers."),
        "proxy": Lazy(f"{_PACKAGE}.server_commands", "Run a proxy: clients that speak gRPC reach brokers by it."),
        "store": Lazy(f"{_PACKAGE}.store", "Look into a broker's store, check it, rebuild its queues and index."),
        "mirror": Lazy(f"{_PACKAGE}.mirror", "Copy topics and the offsets of groups to another cluster."),
        "bench": Lazy(f"{_PACKAGE}.bench", "Measure a cluster under load, with the options of Java's benchmarks."),
        "pipeline": Lazy(f"{_PACKAGE}.pipeline", "Make and run a Spark pipeline from topics to tables and topics."),
        "schema": Lazy(f"{_PACKAGE}.schema", "Derive the schema of the bodies of a topic."),
        "spark": Lazy(f"{_PACKAGE}.spark", "Write SQL statements for Spark."),
        "demo": Lazy(
            f"{_PACKAGE}.cluster_commands",
            "Send a year of New York's flights through two brokers and Spark, and check every figure.",
        ),
    }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.find(args[0]) is None and not ctx.resilient_parsing:
            # Imported here, because the other commands don't need them.
            from difflib import get_close_matches

            from gantrymq.cli.admin.app import MqadminGroup

            meant = [] if get_close_matches(args[0], self.table) else MqadminGroup.similar(args[0])
            if meant:
                ctx.fail(f"No such command {args[0]!r}. Did you mean 'gantry admin {meant[0]}'?")
        return super().resolve_command(ctx, args)


app = new_app(
    cls=GantryGroup,
    # `_options` has the options for completion, because typer's own are not plain flags and need pydantic.
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="RocketMQ in Python: servers, a cluster to try things with, a demonstration.",
    epilog="Examples:\n\ngantry up --topic orders:8\n\necho hello | gantry produce orders\n\n"
    "gantry consume orders -e\n\ngantry admin updateTopic --help",
)


def _version(value: bool) -> None:
    if value:
        from gantrymq import __version__
        from gantrymq.kernels import native

        typer.echo(f"gantry {__version__} ({'without' if native is None else 'with'} gantrymq-native)")
        raise typer.Exit


def _install_completion(ctx: typer.Context, param: typer.CallbackParam, value: bool) -> None:
    if value:
        completion.install_callback(ctx, param, value)


def _show_completion(ctx: typer.Context, param: typer.CallbackParam, value: bool) -> None:
    if value:
        completion.show_callback(ctx, param, value)


def run_command(arguments: Sequence[str]) -> None:
    """Runs the command that the first argument names, or options of `gantry` itself. Raises SystemExit at the end."""
    is_completion = _COMPLETE in os.environ
    if is_completion:
        # Called for its side effect: it registers the shells.
        completion.get_completion_inspect_parameters()
    name = arguments[0] if arguments else ""
    if name in GantryGroup.table and not is_completion:
        # Bypasses the group, whose option --help makes typer import pydantic even if the option isn't given.
        load(GantryGroup.table[name].module, name).main(list(arguments[1:]), prog_name=f"gantry {name}")
    else:
        app(arguments, prog_name="gantry")


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        # `main.run` removes the option from the arguments of every command.
        bool, typer.Option("--debug", help="Show where an error occurred, in any command.")
    ] = False,
    install_completion: Annotated[
        bool,
        typer.Option(
            "--install-completion",
            callback=_install_completion,
            is_eager=True,
            help="Have this shell complete commands and options.",
        ),
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option(
            "--show-completion",
            callback=_show_completion,
            is_eager=True,
            help="Show what --install-completion would install.",
        ),
    ] = False,
) -> None:
    pass
