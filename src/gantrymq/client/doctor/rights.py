"""Checks of permissions: rejected requests, and whether the user may send to the topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.doctor.finding import Finding, problem, warning
from gantrymq.config import MAX_INT
from gantrymq.errors import BrokerError
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2
from gantrymq.protocol.refusals import broker_error
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC

if TYPE_CHECKING:
    from gantrymq.client.doctor.observation import Observation

#: Names, for findings, of requests that a broker may reject.
FIGURES = "its figures"
CONFIGURATION = "its configuration"
GROUPS = "the consumer groups"
SENDING = "messages to the topic"

_PROBE_GROUP = "gantry_doctor"


async def send_refusal(admin: AdminClient, address: str, topic: str) -> BrokerError | None:
    """Returns the error if this user may not send to the topic on the broker, else None.

    Sends a message to a queue id that no topic has. The broker checks the permission first, and stores nothing.
    """
    header = SendMessageRequestHeaderV2(
        producer_group=_PROBE_GROUP,
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=1,
        queue_id=MAX_INT,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
    )
    request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"?")
    response = await transport_of(admin).remoting.invoke(address, request, transport_of(admin).timeout_ms)
    if response.code == ResponseCode.NO_PERMISSION:
        return broker_error(response, address)
    return None


def check_rights(seen: Observation) -> Iterator[Finding]:
    for broker in seen.brokers:
        if not broker.refusals:
            continue
        what = f"{broker.label} refuses {', '.join(broker.refusals)}: {next(iter(broker.refusals.values()))}"
        if not seen.is_signed:
            yield problem(
                what,
                "it wants to know who asks, and the requests had no access key.",
                "Give --acl-config FILE with accessKey and secretKey (a context remembers it); programs: "
                "credentials=Credentials(access_key, secret_key).",
            )
            continue
        grant = (
            "Correct the key, or give the user the right: gantry admin createAcl -s User:NAME -r RESOURCES -a ACTIONS "
            f"-d Allow -c {broker.cluster} (plain_acl.yml: topicPerms, groupPerms, admin)."
        )
        if SENDING in broker.refusals:
            yield problem(what, "this user may not send there.", grant)
        else:
            yield warning(
                what,
                "the key is unknown, or its user has no right to that: checks that need it were skipped.",
                grant,
            )
