"""Queries a NameServer for the live brokers of one broker name (GET_BROKER_MEMBER_GROUP)."""

from __future__ import annotations

from gantrymq.broker.config import BrokerConfig
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.controller import BrokerMemberGroup, ElectMasterResponseBody
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.namesrv import GetBrokerMemberGroupRequestHeader
from gantrymq.remoting.client import RemotingClient

_TIMEOUT_MS = 1000


async def members_of(config: BrokerConfig, remoting: RemotingClient) -> dict[int, str]:
    """Returns host:port by broker id, from the first NameServer that responds.

    The result is empty if no NameServer is configured, or if no broker of this name is registered. Raises GantryError
    if no NameServer responds.
    """
    header = GetBrokerMemberGroupRequestHeader(cluster_name=config.broker_cluster_name, broker_name=config.broker_name)
    problem: GantryError | None = None
    for name_server in config.name_servers:
        request = RemotingCommand.request(RequestCode.GET_BROKER_MEMBER_GROUP, header)
        try:
            answer = await remoting.call(name_server, request, _TIMEOUT_MS)
            # The body has the field `brokerMemberGroup`, like a response of a controller.
            body = decode_json(answer.body, ElectMasterResponseBody) if answer.body else ElectMasterResponseBody()
        except GantryError as e:
            problem = problem or e
        else:
            return (body.broker_member_group or BrokerMemberGroup()).broker_addrs
    if problem is not None:
        raise problem
    return {}
