"""diagnose: finds the faults of a cluster, with causes and remedies."""

from __future__ import annotations

from collections.abc import Sequence

from gantrymq import __version__
from gantrymq.client.credentials import Credentials
from gantrymq.client.doctor.checks import check_brokers, check_name_servers
from gantrymq.client.doctor.disk_checks import check_log_directories
from gantrymq.client.doctor.finding import Finding, Severity, ok
from gantrymq.client.doctor.group_checks import check_groups
from gantrymq.client.doctor.job_checks import check_jobs
from gantrymq.client.doctor.observation import Observation, observe
from gantrymq.client.doctor.one_group_checks import check_one_group
from gantrymq.client.doctor.replication_checks import check_replication
from gantrymq.client.doctor.rights import check_rights
from gantrymq.client.doctor.topic_checks import check_auto_creation, check_topic
from gantrymq.errors import ClientError
from gantrymq.protocol.codes import PROTOCOL_VERSION
from gantrymq.system import tls


async def diagnose(
    name_servers: Sequence[str] | str,
    topic: str | None = None,
    *,
    group: str | None = None,
    ssl_context: tls.SSLContext | None = None,
    credentials: Credentials | None = None,
    timeout_ms: int = 3000,
) -> list[Finding]:
    """Checks a cluster from this machine, with the rights of the user of `credentials`.

    Unreachable servers are findings, not errors.

    Args:
        name_servers: NameServers: a list of HOST:PORT, or one string with `;` between them.
        topic: Also checks whether this topic can be used.
        group: Checks only this consumer group: members, subscriptions, lag. In this case, findings about servers
            contain only faults.
        ssl_context: Encrypts the connections.
        credentials: Keys that sign each request.
        timeout_ms: Timeout of each request, ms. Default: 3000.

    Returns:
        Findings, in the order of a message's path: NameServers, brokers, topic, groups.

    Raises:
        ClientError: No NameServer is given.
    """
    if isinstance(name_servers, str):
        name_servers = [address.strip() for address in name_servers.split(";") if address.strip()]
    if not name_servers:
        raise ClientError("no NameServer given: pass at least one HOST:PORT")
    unique = list(dict.fromkeys(name_servers))
    seen = await observe(
        unique, topic, group=group, ssl_context=ssl_context, credentials=credentials, timeout_ms=timeout_ms
    )
    return judge(seen)


def judge(seen: Observation) -> list[Finding]:
    """Derives findings in the order of a message's path: NameServers, brokers, topic, groups."""
    findings = [ok(f"this is gantrymq {__version__}, RocketMQ's protocol as of MQVersion {PROTOCOL_VERSION}")]
    servers = [*check_name_servers(seen), *check_brokers(seen), *check_replication(seen), *check_rights(seen)]
    if seen.group is not None:
        return [finding for finding in servers if finding.severity is not Severity.OK] + [*check_one_group(seen.group)]
    findings += [
        *servers,
        *check_jobs(seen),
        *check_log_directories(seen),
        *check_auto_creation(seen),
    ]
    if seen.topic is not None:
        findings += check_topic(seen, seen.topic)
    findings += check_groups(seen)
    return findings
