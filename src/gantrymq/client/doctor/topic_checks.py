"""Checks of a topic: it exists, or brokers create it; it is writable and readable."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from gantrymq.client.doctor.finding import Finding, ok, problem, warning
from gantrymq.client.doctor.observation import BrokerSeen, NameServerSeen, Observation, named
from gantrymq.protocol.bodies.route import QueueData, TopicRouteData
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE
from gantrymq.protocol.topic_name import topic_problem


def check_auto_creation(seen: Observation) -> Iterator[Finding]:
    """Reports the brokers that create topics automatically."""
    makers = _makers(seen)
    if makers:
        yield ok(f"brokers create topics automatically (autoCreateTopicEnable): {named(makers)}")
    elif seen.brokers:
        yield ok("topics must be created before the first message: no broker has autoCreateTopicEnable=true")


def check_topic(seen: Observation, topic: str) -> Iterator[Finding]:
    """Compares the topic's route in each NameServer with the brokers."""
    text = topic_problem(topic)
    if text is not None:
        yield problem(
            f"{topic!r} can't be a topic", text, "Use another name: letters, digits, _, -, % and |, at most 127."
        )
        return
    for name_server in seen.answering:
        if name_server.route_error is not None:
            yield problem(
                f"NameServer {name_server.address} doesn't answer for routes: {name_server.route_error}",
                "after its start it may wait for brokers first (needWaitForService, waitSecondsForService).",
                "Look again in a minute; if it stays so, its log says why.",
            )
    asked = [name_server for name_server in seen.answering if name_server.route_error is None]
    knowing = [name_server for name_server in asked if name_server.route is not None]
    if not knowing:
        if asked and seen.brokers:
            yield _missing(seen, topic)
        return
    for name_server in asked:
        if name_server.route is None:
            yield problem(
                f"NameServer {name_server.address} has no route for topic {topic}, "
                f"{named(known.address for known in knowing)} has",
                "a client uses one NameServer, picked at random: some find the topic, some don't.",
                "Let every broker register with every NameServer (namesrvAddr).",
            )
    for name_server in knowing:
        assert name_server.route is not None
        yield from _check_route(seen, topic, name_server, name_server.route)


def _makers(seen: Observation) -> set[str]:
    return {
        queues.broker_name
        for name_server in seen.answering
        if name_server.auto_create_route is not None
        for queues in name_server.auto_create_route.queue_datas
    }


def _missing(seen: Observation, topic: str) -> Finding:
    what = f"no NameServer has a route for topic {topic}"
    servers = ";".join(name_server.address for name_server in seen.answering)
    holders = [broker for broker in seen.brokers if broker.topic is not None]
    if holders:
        return problem(
            f"{what}, though {named(broker.label for broker in holders)} has it",
            "the broker's registration has not come through, or the topic was deleted in the NameServers alone.",
            "Look again in 30 seconds, when brokers register anew; then see the broker's log for failed registrations.",
        )
    known = frozenset[str]().union(*(name_server.topics or () for name_server in seen.answering))
    similar = _similar(topic, known)
    hint = f" Is {named(similar)} meant?" if similar else ""
    clusters = sorted({broker.cluster for broker in seen.brokers})
    create = f"gantry admin updateTopic -n '{servers}' -c {clusters[0]} -t {topic}"
    makers = _makers(seen)
    if makers:
        return warning(
            what,
            f"it doesn't exist yet. Its first message makes it, on {named(makers)} (autoCreateTopicEnable); until then "
            f"consumers find no route.{hint}",
            f"Send a message, or create it: {create}",
        )
    return problem(
        what,
        f"it doesn't exist, and no broker makes topics on its own (autoCreateTopicEnable=false).{hint}",
        f"Create it: {create}",
    )


def _similar(topic: str, known: frozenset[str]) -> list[str]:
    """Returns names that differ in case, by a namespace (INSTANCE%topic), or in a few letters."""
    same = [name for name in known if name.lower() == topic.lower() or name.rpartition("%")[2] == topic]
    return same or difflib.get_close_matches(topic, known, n=3, cutoff=0.8)


def _check_route(
    seen: Observation, topic: str, name_server: NameServerSeen, route: TopicRouteData
) -> Iterator[Finding]:
    where = f" (NameServer {name_server.address})" if len(seen.answering) > 1 else ""
    brokers = {broker.broker_name: broker for broker in route.broker_datas}
    queues = sorted(route.queue_datas, key=lambda data: data.broker_name)
    told = ", ".join(f"{data.broker_name} ({_queues(data)})" for data in queues)
    yield ok(f"topic {topic} is on {told}{where}")
    for data in queues:
        if data.broker_name not in brokers:
            yield problem(
                f"topic {topic} has queues on broker {data.broker_name}, which the NameServer doesn't know{where}",
                "clients can't find those queues.",
                f"Restart broker {data.broker_name}, or delete the topic there.",
            )
        yield from _check_permission(seen, topic, name_server, data, where)
    writable = [
        data
        for data in queues
        if data.perm & PERM_WRITE
        and data.write_queue_nums > 0
        and data.broker_name in brokers
        and brokers[data.broker_name].master_address is not None
    ]
    if not writable:
        yield problem(
            f"topic {topic} takes no messages{where}",
            "no queue of it may be written on a broker that has a master: producers find no route.",
            "Give it back the write permission, or start the masters; see the other findings.",
        )
    if not any(data.perm & PERM_READ and data.read_queue_nums > 0 for data in queues):
        yield problem(
            f"topic {topic} can't be read{where}",
            "no queue of it may be read: consumers get nothing.",
            f"Change it: gantry admin updateTopicPerm -n '{name_server.address}' -c CLUSTER -t {topic} -p 6",
        )


def _queues(data: QueueData) -> str:
    if data.read_queue_nums == data.write_queue_nums:
        return f"{data.read_queue_nums} queues"
    return f"{data.read_queue_nums} queues to read, {data.write_queue_nums} to write"


def _check_permission(
    seen: Observation, topic: str, name_server: NameServerSeen, data: QueueData, where: str
) -> Iterator[Finding]:
    missing = [word for bit, word in ((PERM_READ, "read"), (PERM_WRITE, "written")) if not data.perm & bit]
    if not missing:
        return
    name = data.broker_name
    what = f"topic {topic} can't be {' or '.join(missing)} on broker {name} (perm {data.perm}){where}"
    own = next((broker for broker in seen.brokers if broker.name == name and broker.topic is not None), None)
    yield warning(what, *_why_no_permission(own, topic, name_server.address, data))


def _why_no_permission(own: BrokerSeen | None, topic: str, name_server: str, data: QueueData) -> tuple[str, str]:
    name = data.broker_name
    broker_permission = own.config.get("brokerPermission", "") if own is not None else ""
    if broker_permission.isdigit() and not int(broker_permission) & PERM_WRITE and not data.perm & PERM_WRITE:
        return (
            f"the broker says brokerPermission={broker_permission}: it takes no messages at all.",
            f"Set it back: gantry admin updateBrokerConfig -b {own.address if own else ''} -k brokerPermission -v 6",
        )
    if own is not None and own.topic is not None and own.topic.perm & ~data.perm:
        return (
            f"the broker itself has perm {own.topic.perm}: the permission was taken in the NameServer (wipeWritePerm), "
            "as one does before stopping a broker.",
            f"Give it back: gantry admin addWritePerm -n '{name_server}' -b {name}",
        )
    return (
        "the topic was created so, or its permission changed since.",
        f"Change it: gantry admin updateTopicPerm -n '{name_server}' -b {own.address if own else 'BROKER'} "
        f"-t {topic} -p 6",
    )
