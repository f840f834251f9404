"""Checks of a broker's replicas: connected, lag, in sync, and whether their controllers respond."""

from __future__ import annotations

from collections.abc import Iterator

from gantrymq.client.doctor.finding import Finding, ok, problem, warning
from gantrymq.client.doctor.observation import BrokerSeen, Observation, named
from gantrymq.client.sync_state_sets import SyncStateSetSeen
from gantrymq.protocol.bodies.controller import ReplicasInfo
from gantrymq.system import clock

#: A slave lags behind if it has lacked a message for this time, ms. After a start, a lag is normal for a while.
LATE_MS = 10_000
#: Longest normal time without a frame on an open replication link, s. A master sends at least one frame per
#: haSendHeartbeatInterval (5 s).
SILENT_LINK_S = 12.0


def check_replication(seen: Observation) -> Iterator[Finding]:
    """Checks each broker name with several replicas, or with controllers."""
    for name in dict.fromkeys(broker.name for broker in seen.brokers):
        all_of_name = [broker for broker in seen.brokers if broker.name == name]
        answering = [broker for broker in all_of_name if broker.error is None]
        unregistered = [broker for broker in seen.unregistered if broker.name == name]
        findings = [
            *_check_controllers(name, answering),
            *_check_deposed(answering + unregistered),
            *_check_silent_slaves(all_of_name),
            *_check_slaves(answering),
        ]
        if findings:
            yield from findings
        elif len(all_of_name) > 1 and len(answering) == len(all_of_name) and any(b.is_master for b in answering):
            yield ok(f"broker {name}: all {len(answering)} replicas have all{_in_sync(answering)}")


def _check_deposed(brokers: list[BrokerSeen]) -> Iterator[Finding]:
    """Finds brokers that act as master although their controllers name another master."""
    info = _sync_state(brokers)
    if info is None or info.master_address is None:
        return
    for broker in brokers:
        if broker.error is None and broker.leads and broker.address != info.master_address:
            yield problem(
                f"broker {broker.name} at {broker.address} acts as master, and its controllers name "
                f"{info.master_address} (epoch {info.master_epoch})",
                "it was deposed and has not noticed. What is sent to it can be lost: slaves follow the new master.",
                f"Restore its link to the controllers ({broker.config.get('controllerAddr', '')}), or stop it.",
            )


def _check_silent_slaves(brokers: list[BrokerSeen]) -> Iterator[Finding]:
    """Finds slaves that do not respond although sends wait for their copy."""
    master = next((broker for broker in brokers if broker.is_master and broker.error is None), None)
    silent = [broker for broker in brokers if not broker.is_master and broker.error is not None]
    if master is None or not silent:
        return
    config, info = master.config, _sync_state(brokers)
    if config.get("enableControllerMode") == "true":
        in_sync = {replica.broker_address for replica in info.in_sync_replicas} if info is not None else set()
        waits_for = [broker for broker in silent if broker.address in in_sync]
        waits_for = waits_for if config.get("allAckInSyncStateSet") == "true" else []
        remedy = (
            "Resume or stop that process: the master removes it from the sync-state set after "
            "haMaxTimeSlaveNotCatchup, and at once when its connection closes."
        )
    else:
        needed = _number(config.get("inSyncReplicas")) if config.get("brokerRole") == "SYNC_MASTER" else 1
        others = [broker for broker in brokers if not broker.is_master and broker.error is None]
        waits_for = silent if needed > len(others) + 1 else []
        remedy = "Resume or restart that process, or set inSyncReplicas to as many copies as there are."
    for broker in waits_for:
        yield problem(
            f"{broker.label} at {broker.address} does not respond, and sends wait for its copy",
            f"{master.label} answers a send only when this slave has the message, or with FLUSH_SLAVE_TIMEOUT.",
            remedy,
        )


def _sync_state(brokers: list[BrokerSeen]) -> ReplicasInfo | None:
    """Returns the state of the broker set in the controllers of these brokers; None if unknown."""
    return next((broker.sync_state_set.info for broker in brokers if broker.sync_state_set is not None), None)


def _in_sync(brokers: list[BrokerSeen]) -> str:
    info = _sync_state(brokers)
    if info is None:
        return ""
    ids = ", ".join(str(replica.broker_id) for replica in info.in_sync_replicas)
    return f"; in sync, of epoch {info.master_epoch}, are {ids}"


def _check_half_open(master: BrokerSeen, slaves: list[BrokerSeen]) -> Iterator[Finding]:
    """Finds slaves that recently received nothing over a link that both sides consider open."""
    for slave in slaves:
        if slave.ha_status is None or not slave.ha_status.client.is_activated:
            continue
        read_ms = slave.ha_status.client.last_read_timestamp
        now_ms = int((clock.time() + (slave.clock_ahead_s or 0.0)) * 1000)
        silent_s = (now_ms - read_ms) // 1000
        if 0 < read_ms < now_ms and silent_s > SILENT_LINK_S:
            yield problem(
                f"{slave.label} has received nothing from {master.label} for {silent_s} s over an open connection",
                "the link is half-open: one direction is cut. Sends that wait for this slave are answered "
                "FLUSH_SLAVE_TIMEOUT, until haHousekeepingInterval closes the connection.",
                f"Check the network between {slave.address} and {slave.ha_status.client.master_addr}.",
            )


def _check_slaves(brokers: list[BrokerSeen]) -> Iterator[Finding]:
    master = next((broker for broker in brokers if broker.is_master), None)
    if master is None or master.ha_status is None or not master.ha_status.master:
        return
    connections = master.ha_status.connections
    slaves = [broker for broker in brokers if not broker.is_master]
    for broker in slaves:
        if broker.ha_status is not None and (refusal := broker.ha_status.client.refusal):
            yield problem(
                f"{broker.label} doesn't follow its master: {refusal}",
                "it gets no messages: they would be lost with the master's disk.",
                "If the signature is refused, correct innerClientAuthenticationCredentials. If the disk is full, free "
                "space. If the logs differ, move the slave's store away and start it again.",
            )
    yield from _check_half_open(master, slaves)
    if len(connections) < len(slaves):
        yield problem(
            f"{master.label} has {len(slaves)} registered slaves, of which {len(connections)} are connected with it",
            "who isn't connected gets none of its messages: they would be lost with the master's disk.",
            "The slave's log says why it doesn't follow. It must reach haListenPort (the port after listenPort by "
            "default) of the master; where their logs differ move the slave's store away and start it anew.",
        )
    for slave in connections:
        if slave.behind_millis >= LATE_MS:
            yield warning(
                f"the slave {slave.broker_id if slave.broker_id >= 0 else slave.addr} of {master.label} is "
                f"{slave.behind_millis / 1000:.0f} s behind ({slave.diff:,} bytes)",
                "so much would be lost with the master's disk; one that was just started is behind for a while.",
                "Look again. If it grows: network, disk or haFlowControlEnable "
                f"(now {slave.transferred_byte_in_second:,} bytes a second go to it).",
            )
    config = master.config
    needed = _number(config.get("inSyncReplicas"))
    is_controlled = config.get("enableControllerMode") == "true"
    if config.get("brokerRole") == "SYNC_MASTER" and not is_controlled and needed > len(connections) + 1:
        yield problem(
            f"{master.label} waits for {needed} copies, and {len(connections)} slaves are connected",
            "each send is answered FLUSH_SLAVE_TIMEOUT after slaveTimeout.",
            "Start the slaves that are missing, or set inSyncReplicas to as many as are to be waited for.",
        )


def _check_controllers(name: str, brokers: list[BrokerSeen]) -> Iterator[Finding]:
    sets = [broker.sync_state_set for broker in brokers if broker.sync_state_set is not None]
    if not sets:
        return
    yield from _check_one_set(name, sets[0], brokers)
    if len({tuple(sorted(each.controllers)) for each in sets}) > 1:
        told = "; ".join(f"{broker.address}: {broker.config.get('controllerAddr')}" for broker in brokers)
        yield warning(
            f"the brokers named {name} have different controllers: {told}",
            "those that ask other ones hear nothing of their master, or have one of their own.",
            "Give all of them the same controllerAddr.",
        )


def _check_one_set(name: str, seen: SyncStateSetSeen, brokers: list[BrokerSeen]) -> Iterator[Finding]:
    controllers = ";".join(seen.controllers)
    if seen.error is not None:
        yield problem(
            f"the controllers of broker {name} ({controllers}) can't be asked: {seen.error}",
            "while no controller answers, no master is elected, and some masters reject messages (docs/controller.md).",
            "Start a controller there (gantry controller), or see why it can't be reached from here.",
        )
        return
    info = seen.info
    if info is None or info.master_address is None:
        yield problem(
            f"the controllers of broker {name} ({controllers}) know no master",
            "all that were in sync are away; only one of these has every message that was acknowledged.",
            "Start the brokers of its sync-state set (gantry admin getSyncStateSet); docs/controller.md says more.",
        )
        return
    needed = max((_number(broker.config.get("minInSyncReplicas")) for broker in brokers), default=1)
    count = len(info.in_sync_replicas)
    missing = named(replica.broker_address for replica in info.not_in_sync_replicas)
    if count < needed:
        yield problem(
            f"{count} of broker {name} are in sync, and minInSyncReplicas is {needed}",
            'sends are refused ("in-sync replicas not enough").',
            f"Start the others{f' ({missing})' if missing else ''}, or see in their logs why they don't follow.",
        )
    elif missing:
        yield warning(
            f"not in sync of broker {name} are {missing}",
            "they can't become master before they have all.",
            "Start those that are down; one that was just started is behind for a while.",
        )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else 1
