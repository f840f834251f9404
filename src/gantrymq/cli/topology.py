"""Implements `gantry topology`: shows the cluster as a table, which is refreshed every second."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gantrymq.background.event_loop import new_event_loop
from gantrymq.cli.target import Target
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.topology import BrokerState, Topology
from gantrymq.errors import GantryError

REFRESH_INTERVAL_S = 1.0
#: The longest time for which a broker that doesn't respond delays a refresh, in seconds.
TIMEOUT_S = 2.0
_IN_SYNC = {None: "-", True: "yes", False: "no"}


def run_topology(target: Target, *, once: bool, json: bool) -> None:
    """Prints the cluster, once or until Ctrl-C. Raises a GantryError if no NameServer responds at the start."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(target, once, json))


async def _run(target: Target, once: bool, json: bool) -> None:
    async with AdminClient(
        target.name_servers, ssl_context=target.ssl_context, credentials=target.credentials, timeout=TIMEOUT_S
    ) as admin:
        topology = Topology(admin)
        brokers = await topology.look()
        # A pipe has no width. A large width is set, so that no name is truncated.
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
        if json or once or not console.is_terminal:
            _show(console, brokers, json)
            while not once:
                await asyncio.sleep(REFRESH_INTERVAL_S)
                _show(console, await topology.look(), json)
            return
        with Live(_table(brokers), console=console, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(REFRESH_INTERVAL_S)
                try:
                    brokers = await topology.look()
                    live.update(_table(brokers), refresh=True)
                except GantryError as e:
                    live.update(_table(brokers, str(e)), refresh=True)


def _show(console: Console, brokers: Sequence[BrokerState], json: bool) -> None:
    if json:
        sys.stdout.write(msgspec.json.encode(brokers).decode() + "\n")
        sys.stdout.flush()
    else:
        console.print(_table(brokers))


def _table(brokers: Sequence[BrokerState], error: str | None = None) -> Table:
    masters = sum(broker.role == "master" for broker in brokers)
    total_in, total_out = sum(broker.in_tps or 0 for broker in brokers), sum(broker.out_tps or 0 for broker in brokers)
    caption = Text(
        f"{time.strftime('%H:%M:%S')}   masters {masters}   slaves {len(brokers) - masters}   "
        f"in {total_in:,.0f}/s   out {total_out:,.0f}/s"
    )
    if error is not None:
        caption.append(f"\n{error}", "bold red")
    table = Table(caption=caption, caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("Cluster", "Broker", "Role", "Address", "Version"):
        table.add_column(heading, overflow="fold")
    has_slaves = masters < len(brokers)
    for heading in ("Topics", "Queues", "In/s", "Out/s", *(("Behind, bytes", "Behind, s") if has_slaves else ())):
        table.add_column(heading, justify="right")
    controllers = {controller: None for broker in brokers for controller in broker.controllers or ()}
    if controllers:
        table.add_column("Epoch", justify="right")
        table.add_column("In sync")
        caption.append(f"   controllers {', '.join(controllers)}")
    for broker in brokers:
        trouble = broker.error or broker.refusal
        last = Text(trouble, "bold red") if trouble else Text(broker.version or "?")
        table.add_row(
            *(Text(text) for text in (broker.cluster, broker.broker_name, broker.role, broker.address)),
            last,
            *(_number(number) for number in (broker.topics, broker.queues, broker.in_tps, broker.out_tps)),
            *((_number(broker.lag_bytes), _number(broker.lag_seconds)) if has_slaves else ()),
            *((_number(broker.epoch), _IN_SYNC[broker.in_sync]) if controllers else ()),
        )
    return table


def _number(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.1f}"
