"""Compares the replicas at the end of a run: each name has one master, and all of its brokers have the same log."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from functools import partial
from hashlib import sha256

from gantrymq.broker.broker import Broker
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.store.message_store import MessageStore
from sim.cluster import BROKER_PORT, Program, Servers

#: Longest time until replicas are equal after faults and clients have ended, in seconds: two periods of each job.
_SAME_S = 60.0
_LOOK_S = 1.0
_PIECE = 1 << 20


async def compare(servers: Servers, lied: Container[str], deleted: Container[str]) -> list[str]:
    """Returns the remaining differences after all brokers have caught up, or after `_SAME_S`.

    Brokers in `lied` are skipped: their logs may have holes that recovery did not read. Queues of `deleted` topics are
    skipped, too: as in Java, a slave keeps them until their messages expire. A slave that becomes master before it
    received the deletion also has them.
    """
    problems: list[str] = []
    for _ in range(int(_SAME_S / _LOOK_S)):
        problems = [problem for name in servers.replicas() for problem in _wrong(servers, name, lied, deleted)]
        if not problems:
            break
        await asyncio.sleep(_LOOK_S)
    return problems


def _wrong(servers: Servers, name: str, lied: Container[str], deleted: Container[str]) -> list[str]:
    running = dict(servers.looked_into_by_name())
    programs = servers.replicas()[name]
    if away := [program.name for program in programs if program.name not in running]:
        return [f"{', '.join(away)} doesn't run"]
    brokers = [(program, running[program.name]) for program in programs]
    masters = [(program, broker) for program, broker in brokers if broker is servers.masters().get(name)]
    if len(masters) != 1:
        return [f"{name} has {len(masters)} masters"]
    for name_server, server in servers.name_servers_looked_into():
        known = server.table.broker_addresses(name).get(MASTER_ID)
        if known != f"{masters[0][0].host.address}:{BROKER_PORT}":
            return [f"{name_server.name} knows {known} as the master of {name}, not {masters[0][0].name}"]
    brokers = [(program, broker) for program, broker in brokers if program.name not in lied]
    ends = {program.name: broker.store.max_physical_offset for program, broker in brokers}
    if len(set(ends.values())) > 1:
        return [f"the logs of {name} end at {ends}: {_refusals(brokers)}"]
    begin = max(broker.store.min_physical_offset for _, broker in brokers)
    logs = {program.name: program.look(partial(_log, broker.store, begin)) for program, broker in brokers}
    if len(set(logs.values())) > 1:
        return [f"the logs of {name} differ: {logs}"]
    queues = [program.look(partial(_queues, broker.store, begin, deleted)) for program, broker in brokers]
    for place in sorted(set().union(*queues)):
        if len({found.get(place) for found in queues}) > 1:
            return [f"the queues of {name} differ in {place}: {[found.get(place) for found in queues]}"]
    return []


def _refusals(brokers: list[tuple[Program, Broker]]) -> str:
    slaves = [(program.name, broker.replication.slave) for program, broker in brokers]
    return ", ".join(f"{name}: {slave.refusal}" for name, slave in slaves if slave is not None and slave.refusal)


def _log(store: MessageStore, place: int) -> str:
    """Returns a digest of the log from this position on."""
    found = sha256()
    while (piece := store.log_slice(place, _PIECE)) is not None:
        found.update(piece)
        place += len(piece)
    return found.hexdigest()[:8]


def _queues(store: MessageStore, begin: int, deleted: Container[str]) -> dict[str, str]:
    """Returns for each queue the range of its offsets and a digest."""
    found = {}
    for topic, ids in store.topics().items():
        for queue_id in ids if topic not in deleted else ():
            queue = store.queue(topic, queue_id)
            # Replicas compact at other times, so the first compacted messages differ.
            offsets = range(queue.log_min_offset, queue.max_offset)
            units = [(at, unit) for at in offsets if (unit := queue.unit(at))]
            units = [(at, unit) for at, unit in units if unit[0] >= begin]
            if units:
                digest = sha256(repr(units).encode()).hexdigest()[:8]
                found[f"{topic}-{queue_id}"] = f"{units[0][0]} to {units[-1][0]}, {digest}"
    return found
