"""Limits calculated from the figures of scale.py: the capacity of one node, and of a NameServer for 100 nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from measures import figure
from scale_namesrv import TOPICS_OF_A_BROKER
from scale_run import BEAT_S, Row

_US = 1e6
#: Share of a processor for constant work, such as heartbeats and pending pulls. The rest is for messages.
_SHARE = 0.1
_NODES = 100
#: Number of topics whose routes a client queries.
_ROUTES = 10


def limits(rows: Mapping[str, Sequence[Row]]) -> str:
    """Returns two Markdown tables."""
    return f"{_one_node(rows)}\n{_cluster(rows)}"


def _one_node(rows: Mapping[str, Sequence[Row]]) -> str:
    small, kib = rows["size"][0], rows["size"][1]
    topics, groups, connections = rows["topics"], rows["groups"], rows["connections"]
    last, most = rows["messages"][-1], connections[-1]
    disk = slope(rows["messages"], "disk") * (1 << 20)
    beat = most["idle"] / 100 / most["x"]
    lines = ["| one broker | measured | calculated |", "|---|---|---|"]
    for what, us in (
        ("single sends of 128 B, 32 in flight", small["send"]),
        ("single sends of 1 KiB, 32 in flight", kib["send"]),
        (f"single sends of 128 B, over {most['x']:,} connections in turn", most["send"]),
        ("messages of 128 B, sent in batches", last["batched"]),
        ("messages of 128 B, read with 32 per pull", small["read"]),
        ("messages of 1 KiB, read with 32 per pull", kib["read"]),
    ):
        lines.append(f"| {what} | {figure(us)} µs of CPU | {figure(_US / us)}/s per core |")
    for what, kib_of_each in (
        ("topic of 8 queues without messages", slope(topics, "unused") * 1024),
        ("group with one member", slope(groups, "own") * 1024),
        ("connection with heartbeat and waiting pull", most["each"]),
    ):
        lines.append(f"| memory of a {what} | {figure(kib_of_each)} KiB | {figure((1 << 20) / kib_of_each)} per GiB |")
    group = groups[-1]["heartbeat"] / BEAT_S / _US
    lines += [
        f"| heartbeat of a group, every {BEAT_S:.0f} s | {figure(groups[-1]['heartbeat'])} µs of CPU | "
        f"{figure(_SHARE / group)} groups use {_SHARE:.0%} of a core |",
        f"| heartbeats and waiting pulls of a connection | {figure(beat * 100)} % of a core | "
        f"{figure(_SHARE / beat)} connections use {_SHARE:.0%} of a core |",
        f"| disk space of a message of 128 B | {figure(disk)} B | {figure((1 << 40) / disk / 1e6)} million per TiB |",
    ]
    return "\n".join(lines) + "\n"


def _cluster(rows: Mapping[str, Sequence[Row]]) -> str:
    few, many = (next(row for row in rows["brokers"] if row["x"] == brokers) for brokers in (10, _NODES))
    of_topic_us = many["again"] / TOPICS_OF_A_BROKER
    of_topic_mib = slope(rows["topics"], "namesrv")
    lines = [
        f"| one NameServer, {_NODES} brokers | CPU of registrations | CPU of routes, topics on 10 brokers "
        "| CPU of routes, topics on all brokers | sent, MiB/s | memory of topics, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for topics, clients in ((1_000, 1_000), (10_000, 10_000), (10_000, 100_000), (50_000, 10_000)):
        asked = clients * _ROUTES / BEAT_S
        registered = _NODES * topics / BEAT_S * of_topic_us / _US
        lines.append(
            f"| {topics:,} topics, {clients:,} clients | {registered:.1%} | {asked * few['route'] / _US:.1%} "
            f"| {asked * many['route'] / _US:.1%} | {figure(asked * few['answer'] / 1024)} to "
            f"{figure(asked * many['answer'] / 1024)} | {figure(topics * of_topic_mib)} |"
        )
    return "\n".join(lines) + "\n"


def slope(rows: Sequence[Row], name: str) -> float:
    """Returns the cost of one more unit, between the two largest points."""
    before, last = rows[-2], rows[-1]
    return (last[name] - before[name]) / (last["x"] - before["x"])
