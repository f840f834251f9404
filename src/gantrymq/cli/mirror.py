"""`gantry mirror`: copies topics and offsets of groups to another cluster, and prints the progress."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gantrymq.cli.lazy import new_app
from gantrymq.cli.target import Target, find_target

if TYPE_CHECKING:
    from gantrymq.mirror import MirrorOptions, Progress

app = new_app()


@app.command()
def mirror(
    topics: Annotated[
        list[str],
        typer.Option("--topics", metavar="PATTERN", help="Topics such as 'orders-*'. Can be repeated."),
    ],
    groups: Annotated[
        list[str] | None,
        typer.Option("--groups", metavar="PATTERN", help="Groups whose offsets are copied. Can be repeated."),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="HOST:PORT;...", help="NameServers of the source.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="HOST:PORT;...", help="NameServers of the target.")
    ] = None,
    source_context: Annotated[
        str | None, typer.Option("--from-context", metavar="NAME", help="The source, of gantry context list.")
    ] = None,
    target_context: Annotated[
        str | None, typer.Option("--to-context", metavar="NAME", help="The target, of gantry context list.")
    ] = None,
    source_acl: Annotated[
        Path | None, typer.Option("--from-acl-config", metavar="FILE", help="Access key of the source.")
    ] = None,
    target_acl: Annotated[
        Path | None, typer.Option("--to-acl-config", metavar="FILE", help="Access key of the target.")
    ] = None,
    source_tls: Annotated[
        Path | None, typer.Option("--from-tls-config", metavar="FILE", help="TLS settings of the source.")
    ] = None,
    target_tls: Annotated[
        Path | None, typer.Option("--to-tls-config", metavar="FILE", help="TLS settings of the target.")
    ] = None,
    state_topic: Annotated[
        str, typer.Option("--state-topic", metavar="TOPIC", help="Topic of the target with this mirror's positions.")
    ] = "gantry_mirror",
    rename: Annotated[
        str, typer.Option("--rename", metavar="PREFIX", help="Prefix of the topics' names on the target.")
    ] = "",
    rate: Annotated[int | None, typer.Option("--rate", metavar="N", min=1, help="Maximum messages per second.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Copy the messages that exist at the start, then exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the progress as one JSON object per line.")] = False,
) -> None:
    """Copy topics and the offsets of groups to another cluster, until Ctrl-C or --once.

    A new start continues where the last one ended. With --once, the exit code is 1 if a queue or an offset could not be
    copied.
    """
    sides: list[Target] = []
    for flag, servers, context, tls, acl in (
        ("from", source, source_context, source_tls, source_acl),
        ("to", target, target_context, target_tls, target_acl),
    ):
        if servers is None and context is None:
            raise typer.BadParameter("one of the two is needed", param_hint=f"'--{flag}' / '--{flag}-context'")
        sides.append(find_target(servers, context, tls, acl))
    from gantrymq.mirror import MirrorOptions
    from gantrymq.service import run

    options = MirrorOptions(
        topics=topics, groups=groups or (), state_topic=state_topic, rename=rename, rate=rate, once=once
    )

    async def main(stop: asyncio.Event) -> tuple[Progress, bool]:
        progress = await _mirror(sides[0], sides[1], options, json, stop)
        return progress, stop.is_set()

    result = run(main)
    if not once:
        return
    if result is None or result[1]:
        raise typer.Exit(128 + signal.SIGTERM)
    if result[0].failed or result[0].failed_groups:
        raise typer.Exit(1)


async def _mirror(source: Target, target: Target, options: MirrorOptions, json: bool, stop: asyncio.Event) -> Progress:
    from gantrymq.client.admin.client import AdminClient
    from gantrymq.mirror.cluster import Cluster
    from gantrymq.mirror.mirror import Mirror

    last = ""

    def report(progress: Progress) -> None:
        nonlocal last
        text = _line(progress, json)
        if json or text != last:
            print(text, flush=True)
        last = text

    async with (
        AdminClient(source.name_servers, ssl_context=source.ssl_context, credentials=source.credentials) as reader,
        AdminClient(target.name_servers, ssl_context=target.ssl_context, credentials=target.credentials) as writer,
    ):
        progress = await Mirror(Cluster(reader), Cluster(writer), options, report).run(stop)
    for failed in progress.failed:
        queue = "" if failed.queue_id is None else f", queue {failed.queue_id} of {failed.broker}"
        print(f"gantry: topic {failed.topic}{queue}: {failed.error}", file=sys.stderr)
    for error in progress.failed_groups:
        print(f"gantry: {error}", file=sys.stderr)
    return progress


def _line(progress: Progress, json: bool) -> str:
    if not json:
        return str(progress)
    import msgspec

    return msgspec.json.encode(progress.fields()).decode()
