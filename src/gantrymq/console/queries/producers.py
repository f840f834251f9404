"""Producers on all brokers. For producers behind a proxy, the page shows only the proxy."""

from __future__ import annotations

import msgspec

from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.servers import servers_of
from gantrymq.protocol.version_name import version_name


class Producer(msgspec.Struct):
    """One producer in one group. `heard_ms` is the time of its last heartbeat to any of `brokers`."""

    group: str
    client_id: str
    address: str
    language: str
    version: str
    heard_ms: int
    brokers: list[str]


class ProducersPage(msgspec.Struct):
    table: Cut[Producer]
    unasked: list[Unasked]


async def producers(view: ClusterView, arguments: ListArguments) -> ProducersPage:
    servers = await servers_of(view)
    names = {address: name for name, address in servers.masters.items()}
    answers = await view.each(names, view.admin.producers)
    known: dict[tuple[str, str], Producer] = {}
    for address, by_group in sorted(answers.results.items()):
        for group, clients in by_group.items():
            for client in clients:
                producer = known.get((group, client.client_id))
                if producer is None:
                    producer = known[group, client.client_id] = Producer(
                        group,
                        client.client_id,
                        client.remote_ip,
                        client.language,
                        version_name(client.version),
                        client.last_update_timestamp,
                        [],
                    )
                producer.heard_ms = max(producer.heard_ms, client.last_update_timestamp)
                producer.brokers.append(names[address])
    columns = {
        "group": lambda p: p.group,
        "client": lambda p: p.client_id,
        "version": lambda p: (p.language, p.version),
        "heard": lambda p: p.heard_ms,
    }
    table = cut(
        known.values(),
        arguments,
        columns,
        text=lambda p: f"{p.group} {p.client_id} {p.address} {p.language} {p.version}",
        default="group",
    )
    return ProducersPage(table, answers.unasked)
