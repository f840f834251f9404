"""Parses the options of `gantry up`, `doctor`, `topology` and `demo`. Other modules implement the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gantrymq.cli.exit_codes import INTERRUPTED
from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile
from gantrymq.cli.target import find_target

app = new_app()


@app.command()
def up(
    brokers: Annotated[int, typer.Option(min=1, max=100, help="How many, each in a process of its own.")] = 1,
    replicas: Annotated[
        int,
        typer.Option(
            min=1, max=5, help="Copies of each broker; with several a send is answered when two have its message."
        ),
    ] = 1,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", file_okay=False, help="Directory of the data. Without it, Ctrl-C deletes the data."),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=50_000,
            help="Port of the NameServer. With 9876, all servers use RocketMQ's ports; with another one, the ports "
            "after it: +1 proxy, +4 console, +5, +15 ... brokers. 0: free ports.",
        ),
    ] = 9876,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="NAME[:QUEUES]",
            help="A topic that is there on every broker before anybody sends, with so many queues on each (8); repeat "
            "it.",
        ),
    ] = None,
    proxy: Annotated[
        bool, typer.Option("--proxy", help="Also run a proxy, for clients that use gRPC (port 8081).")
    ] = False,
    controller: Annotated[
        bool,
        typer.Option(
            "--controller",
            help="Also run a controller, which makes another replica the master when one ends (port 9878).",
        ),
    ] = False,
    console: Annotated[
        bool,
        typer.Option("--console", help="Also run the console, which shows the cluster in a browser (port 8180)."),
    ] = False,
) -> None:
    """Run a NameServer and brokers on this machine until Ctrl-C."""
    from gantrymq.cli.up import parse_topics, run_cluster

    if proxy:
        from gantrymq.extras import need

        need("proxy", "gantry up --proxy")
    if console:
        from gantrymq.extras import need

        need("console", "gantry up --console")
    raise typer.Exit(
        run_cluster(
            brokers,
            directory,
            port,
            parse_topics(topics or []),
            replicas,
            proxy=proxy,
            controller=controller,
            console=console,
        )
    )


@app.command()
def doctor(
    topic: Annotated[str | None, typer.Argument(help="Why can't I send to it, or read it?")] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "-g", "--group", metavar="NAME", help="Check only this consumer group: why does it receive nothing?"
        ),
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A proxy, as its clients see it from here; the cluster, too, with -n or --context.",
        ),
    ] = None,
    name_servers: NameServers = None,
    context: ContextName = None,
    json: Annotated[bool, typer.Option("--json", help="The findings as one JSON document.")] = False,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Find problems of a cluster, a topic, a group or a proxy, and say how to fix them.

    Exit code 1 if there is a problem.
    """
    if topic is not None and group is not None:
        raise typer.BadParameter("a topic or a group, not both", param_hint="'--group'")
    if proxy is not None:
        from gantrymq.extras import need

        if group is not None:
            raise typer.BadParameter("brokers know of it, not proxies: without --proxy", param_hint="'--group'")
        need("proxy", "gantry doctor --proxy")
    from gantrymq.cli.doctor import run_doctor

    target = find_target(name_servers, context, tls_config, acl_config, checks_addresses=False)
    is_cluster_meant = proxy is None or name_servers is not None or context is not None
    raise typer.Exit(run_doctor(target, topic, group, proxy, is_cluster_meant=is_cluster_meant, json=json))


@app.command()
def topology(
    name_servers: NameServers = None,
    context: ContextName = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once, not until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="A line of JSON each time instead of a table.")] = False,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Show clusters, brokers, topics and rates. Refresh every second until Ctrl-C."""
    from gantrymq.cli.topology import run_topology

    run_topology(find_target(name_servers, context, tls_config, acl_config), once=once, json=json)


@app.command()
def demo(
    directory: Annotated[
        Path | None,
        typer.Option("--dir", file_okay=False, help="Where the state and the results are kept.", show_default="cache"),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over: discard the state of an earlier run.")] = False,
    flights: Annotated[int | None, typer.Option(min=1, help="Only this number of flights; default: all.")] = None,
) -> None:
    """Send a year of New York's flights through two brokers and Spark, and check every figure.

    A run that was interrupted continues where it stopped.
    """
    from gantrymq.extras import need

    need("demo", "gantry demo")
    from gantrymq.demo.run import run_demo
    from gantrymq.testing.signals import Interrupted

    try:
        raise typer.Exit(run_demo(directory, fresh=fresh, limit=flights))
    except Interrupted:
        raise typer.Exit(INTERRUPTED) from None
