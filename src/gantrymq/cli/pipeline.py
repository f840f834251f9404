"""The command lines of `gantry pipeline`, which creates and runs projects of Spark Declarative Pipelines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import ContextName
from gantrymq.cli.target import named_context

app = new_app(
    no_args_is_help=True,
    help="Make and run a Spark pipeline from topics to tables and topics.",
)


@app.command()
def init(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="The new directory.")],
    template: Annotated[
        str,
        typer.Option(
            metavar="TEMPLATE",
            help="What to begin with: orders, a declarative pipeline, or a program: change-capture, enrichment-join, "
            "sessions, dead-letter-repair, backfill-then-live, ...; a wrong one is answered with all of them.",
        ),
    ] = "orders",
) -> None:
    """Write a project: a topic, three tables and a topic of results. Or a program to modify."""
    from gantrymq.pipeline.project import PROGRAM, create_project

    directory = create_project(name, template)
    if (directory / PROGRAM).exists():
        print(f"{directory} is made. README.md describes it:\n\n    cd {name}\n    python {PROGRAM} --help")
        return
    print(f"{directory} is made. To run it with a cluster of its own:\n\n    cd {name}\n    gantry pipeline run")


@app.command()
def run(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", file_okay=False, help="The project.")] = Path(),
    name_server: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--name-server",
            "--namesrvAddr",
            metavar="HOST:PORT;...",
            help="The NameServers of the cluster; without it and --context one of its own runs meanwhile.",
        ),
    ] = None,
    context: ContextName = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="The Spark cluster; this machine's cores without it.")
    ] = None,
) -> None:
    """Read the messages that arrived since the last run."""
    from gantrymq.extras import need

    need("pipelines", "gantry pipeline run")
    from gantrymq.pipeline.run import run_project
    from gantrymq.testing.signals import Interrupted, interruptible

    context_name = named_context(name_server, context)
    try:
        with interruptible():
            run_project(directory, name_server, context_name, master, lambda line: print(line, flush=True))
    except Interrupted as e:
        print("interrupted: the next run continues where this one ended", file=sys.stderr)
        raise typer.Exit(128 + e.signal_number) from None
