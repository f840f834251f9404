"""Checks of NameServers and brokers: reachable, consistent, correct addresses."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator

from gantrymq.client.doctor.finding import Finding, ok, problem, warning
from gantrymq.client.doctor.observation import BrokerSeen, NameServerSeen, Observation, named
from gantrymq.client.doctor.unreachable import is_tls_problem, why_unreachable
from gantrymq.errors import GantryError
from gantrymq.remoting.address import parse_address

#: Largest accepted difference between a broker's clock and the local one, s. The measurement is exact to the second.
CLOCK_TOLERANCE_S = 10.0


def check_name_servers(seen: Observation) -> Iterator[Finding]:
    for name_server in seen.name_servers:
        if name_server.error is not None:
            yield _unreachable_name_server(name_server.address, name_server.error, seen.over_tls)
        else:
            topics = "" if name_server.topics is None else f", topics: {len(name_server.topics)}"
            yield ok(f"NameServer {name_server.address} answers; brokers: {len(name_server.brokers)}{topics}")
    yield from _check_agreement(seen.answering)


def _unreachable_name_server(address: str, error: GantryError, over_tls: bool) -> Finding:
    what = f"NameServer {address} can't be used: {error}"
    why, remedy = why_unreachable(error, over_tls)
    return problem(what, why, remedy.format(server="the NameServer", option="-n (its port is 9876 by default)"))


def _check_agreement(name_servers: list[NameServerSeen]) -> Iterator[Finding]:
    """Compares the brokers in the NameServers, which do not share state."""
    if len(name_servers) < 2:
        return
    findings: list[Finding] = []
    addresses: dict[tuple[str, int], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name_server in name_servers:
        for key, address in name_server.brokers.items():
            addresses[key][address].append(name_server.address)
    everywhere = {name_server.address for name_server in name_servers}
    for (name, broker_id), by_address in sorted(addresses.items()):
        label = f"broker {name} (id {broker_id})"
        knowing = {server for servers in by_address.values() for server in servers}
        if knowing != everywhere:
            findings.append(
                problem(
                    f"{label} is registered with {named(knowing)}, but not with {named(everywhere - knowing)}",
                    "NameServers don't tell each other; a client that asks the wrong one finds no route.",
                    f"Set namesrvAddr={';'.join(sorted(everywhere))} on {name} and restart it; if it is set, look for "
                    "failed registrations in the broker's log.",
                )
            )
        if len(by_address) > 1:
            told = "; ".join(f"{address} for {named(servers)}" for address, servers in sorted(by_address.items()))
            findings.append(
                problem(
                    f"{label} has several addresses: {told}",
                    "two brokers use the same name and id, or one moved and a NameServer has not heard of it yet.",
                    "Give each master a brokerName of its own; after a move wait two minutes and look again.",
                )
            )
    if not findings:
        findings += _topics_that_differ(name_servers)
    yield from findings or [ok(f"the {len(name_servers)} NameServers agree")]


def _topics_that_differ(name_servers: list[NameServerSeen]) -> Iterator[Finding]:
    lists = [seen.topics for seen in name_servers if seen.topics is not None]
    everything = frozenset[str]().union(*lists)
    for seen in name_servers:
        if seen.topics is not None and (missing := everything - seen.topics):
            yield warning(
                f"NameServer {seen.address} doesn't know {len(missing)} topics that others do: {named(missing)}",
                "they were made a moment ago, or deleted where this NameServer heard of it and the others didn't.",
                "Look again in 30 seconds, when every broker has registered anew; then delete or create them again.",
            )


# -- brokers --------------------------------------------------------------------------------------------------------


def check_brokers(seen: Observation) -> Iterator[Finding]:
    if not seen.answering:
        return
    if not seen.brokers:
        servers = ";".join(name_server.address for name_server in seen.answering)
        yield problem(
            "no broker is registered",
            "no broker runs, or those that run were given other NameServers or can't reach these. Without brokers "
            "there are no topics.",
            f"Start a broker with namesrvAddr={servers} (gantry broker -n {servers}); if one runs, its log says why it "
            "can't register.",
        )
        return
    yield from _check_masters(seen.brokers, seen.unregistered)
    yield from _check_shared_addresses(seen.brokers)
    is_local = all(_is_loopback(name_server.address) for name_server in seen.answering)
    for broker in seen.brokers:
        yield from _check_broker(broker, name_servers_are_local=is_local, over_tls=seen.over_tls)
    yield from _check_versions(seen.brokers)


def _check_masters(brokers: list[BrokerSeen], unregistered: list[BrokerSeen]) -> Iterator[Finding]:
    names = {broker.name for broker in brokers}
    for name in sorted(names - {broker.name for broker in brokers if broker.is_master}):
        slaves = [broker for broker in brokers if broker.name == name]
        cut_off = next((broker for broker in unregistered if broker.name == name and broker.leads), None)
        if cut_off is not None:
            yield problem(
                f"broker {name} has a master at {cut_off.address} that answers and is registered with no NameServer",
                f"its link to the NameServers is cut: clients that start find no master. {_without_master(slaves)}",
                f"Restore the network between {cut_off.address} and the NameServers, or correct namesrvAddr there.",
            )
            continue
        yield problem(
            f"broker {name} has no master, only {named(broker.address for broker in slaves)}",
            f"its master (brokerId=0) is down or has not registered. {_without_master(slaves)}",
            f"Start the master of {name} again, or see its log for why it can't register.",
        )


def _without_master(slaves: list[BrokerSeen]) -> str:
    """Returns a text that says whether the queues can be read while there is no master."""
    refuse_reads = any(slave.config.get("slaveReadEnable") == "false" for slave in slaves)
    reads = "can't be read either, because slaveReadEnable=false" if refuse_reads else "can be read"
    text = f"Its queues take no messages, and {reads}."
    if any(slave.config.get("enableSlaveActingMaster") == "true" for slave in slaves):
        text += " A slave acts as master: brokers of other names deliver the messages that are due."
    return text


def _check_shared_addresses(brokers: list[BrokerSeen]) -> Iterator[Finding]:
    by_address: dict[str, set[str]] = defaultdict(set)
    for broker in brokers:
        by_address[broker.address].add(broker.label)
    for address, labels in sorted(by_address.items()):
        if len(labels) > 1:
            yield problem(
                f"{' and '.join(sorted(labels))} advertise the same address, {address}",
                "clients reach only one of them there. Containers often have equal addresses inside.",
                "Set brokerIP1 and listenPort on each so that both together are its own, as seen from the clients.",
            )


def _check_broker(broker: BrokerSeen, *, name_servers_are_local: bool, over_tls: bool) -> Iterator[Finding]:
    own_machine_only = _is_loopback(broker.address) and not name_servers_are_local
    if broker.error is not None:
        yield _unreachable_broker(broker, broker.error, own_machine_only=own_machine_only, over_tls=over_tls)
        return
    name = broker.config.get("brokerName", broker.name)
    if name != broker.name:
        yield problem(
            f"at {broker.address}, the address of {broker.label}, broker {name} answers",
            "the address leads to another broker: messages land in the wrong place, or are refused.",
            f"Set brokerIP1 and listenPort of {broker.name} to an address that leads to it alone.",
        )
        return
    version = broker.runtime.get("brokerVersionDesc")
    yield ok(f"{broker.label} answers at {broker.address}" + (f", {version}" if version else ""))
    if own_machine_only:
        yield warning(
            f"{broker.label} advertises {broker.address}",
            "that is reached from its own machine only; elsewhere clients find nobody, or another broker, there.",
            "Set brokerIP1 to an address of the machine that clients reach, and restart the broker.",
        )
    waits_for_all = broker.config.get("enableControllerMode") == broker.config.get("allAckInSyncStateSet") == "true"
    is_sync = broker.config.get("brokerRole") == "SYNC_MASTER"
    if is_sync and not waits_for_all and broker.config.get("inSyncReplicas", "1") == "1":
        yield warning(
            f"{broker.label} is a SYNC_MASTER that waits for no slave",
            "with inSyncReplicas=1, Java's default, a send is answered as soon as the master itself has the message: "
            "what slaves lack is lost with its disk.",
            "Set inSyncReplicas=2 (the master and one slave), or brokerRole=ASYNC_MASTER if that is meant.",
        )
    ahead_s = broker.clock_ahead_s
    if ahead_s is not None and abs(ahead_s) > CLOCK_TOLERANCE_S:
        yield warning(
            f"the clock of {broker.label} is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} this one",
            "store times, delays, searches by time and consumers that start at a time are off by as much.",
            "Synchronize the clocks (NTP) of both machines.",
        )


def _unreachable_broker(broker: BrokerSeen, error: GantryError, *, own_machine_only: bool, over_tls: bool) -> Finding:
    what = f"{broker.label} can't be reached at {broker.address}, the address that it advertises: {error}"
    if own_machine_only:
        why = "that address is the broker's own machine, as seen from itself. From here it leads to this machine."
        remedy = "Set brokerIP1 to an address that clients reach, and restart the broker."
    else:
        reason, remedy = why_unreachable(error, over_tls)
        why = f"the NameServers send every client there; {reason}"
        remedy = remedy.format(server="the broker", option="brokerIP1 and listenPort of the broker")
        if _is_private(broker.address) and not is_tls_problem(error, over_tls):
            remedy += (
                " In a container the broker advertises the container's address unless brokerIP1 says otherwise: set it "
                "to the host's and publish listenPort under the same number."
            )
    return problem(what, why, remedy) if broker.is_master else warning(what, why, remedy)


def _check_versions(brokers: list[BrokerSeen]) -> Iterator[Finding]:
    versions: dict[str, set[str]] = defaultdict(set)
    for broker in brokers:
        if version := broker.runtime.get("brokerVersionDesc"):
            versions[version].add(broker.name)
    if len(versions) > 1:
        told = "; ".join(f"{version}: {named(names)}" for version, names in sorted(versions.items()))
        yield warning(
            f"the brokers have different versions: {told}",
            "a feature that only some have works or fails by the queue a message goes to.",
            "Use what all of them have until the older ones are replaced.",
        )


def _host(address: str) -> str:
    try:
        return parse_address(address)[0]
    except ValueError:
        return address


def _is_loopback(address: str) -> bool:
    host = _host(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_private(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(_host(address))
    except ValueError:
        return False
    return ip.is_private and not ip.is_loopback
