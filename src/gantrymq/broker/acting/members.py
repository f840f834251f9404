"""Who of the brokers of one name is there, as a NameServer says (GET_BROKER_MEMBER_GROUP)."""

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
    """host:port by id, from the first NameServer that answers; empty where none knows the name.

    Raises GantryError when none answers.
    """
    header = GetBrokerMemberGroupRequestHeader(cluster_name=config.broker_cluster_name, broker_name=config.broker_name)
    problem: GantryError | None = None
    for name_server in config.namesrv_addr:
        request = RemotingCommand.request(RequestCode.GET_BROKER_MEMBER_GROUP, header)
        try:
            answer = await remoting.call(name_server, request, _TIMEOUT_MS)
            # The body has the same field as a controller's answer.
            body = decode_json(answer.body, ElectMasterResponseBody) if answer.body else ElectMasterResponseBody()
        except GantryError as e:
            problem = problem or e
        else:
            return (body.broker_member_group or BrokerMemberGroup()).broker_addrs
    if problem is not None:
        raise problem
    return {}
