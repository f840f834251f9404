"""First requests of a consumer. If a retry cannot fix an error, `start` raises the error instead of logging it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from gantrymq.client.client_instance import ClientInstance
from gantrymq.errors import BrokerError, GantryError, NoRouteInfo, ProtocolError, RemotingError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.connection import CheckClientRequestBody
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_TAG, SubscriptionData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX

log = peer_log(__name__)

#: Longest time that a start waits for servers, s.
START_S = 3.0
#: Pause before the next request to an unreachable NameServer, s.
_RETRY_S = 0.1
_TIMEOUT_MS = 3000
#: Response codes for an invalid expression. A retry would get the same response.
_WRONG_EXPRESSION = (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.NO_PERMISSION)


async def introduce(
    client: ClientInstance, group: str, subscriptions: Collection[SubscriptionData], *, shares_queues: bool
) -> None:
    """Waits for the routes of the subscribed topics and for the first heartbeats, for at most START_S seconds.

    Topics that do not exist and unreachable brokers are no error: the running consumer keeps trying. If the consumer
    shares queues with its group, and the routes lack brokers, the heartbeats come later.

    Raises:
        RemotingError: No NameServer answers in this time.
        ProtocolError: The response of a NameServer is invalid.
        BrokerError: A broker rejects a filter, or the consumer may not join the group.
    """
    if shares_queues:
        client.postpone_heartbeats()
    wanted = [one for one in subscriptions if not one.topic.startswith(RETRY_TOPIC_PREFIX)]
    deadline = asyncio.get_running_loop().time() + START_S
    for subscription in wanted:
        await _find_route(client, group, subscription.topic, deadline)
    try:
        async with asyncio.timeout_at(deadline):
            await asyncio.gather(*(check_expression(client, group, one) for one in wanted))
            await client.greet_new_brokers()
    except TimeoutError:
        log.warning("not all brokers have answered consumer group %s in %g s", group, START_S)
    for replicas in client.routes.all_brokers().values():
        for address in replicas.values():
            error = client.failure_log.of(address)
            if isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION:
                raise error


async def _find_route(client: ClientInstance, group: str, topic: str, deadline: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            async with asyncio.timeout_at(deadline + _RETRY_S):
                await client.routes.get(topic)
            return
        except NoRouteInfo as e:
            client.failure_log.report(f"group {group}", e)
            return
        except (RemotingError, ProtocolError):
            if loop.time() + _RETRY_S >= deadline:
                raise
        except TimeoutError:
            if client.routes.cached(topic) is None:
                raise RemotingError(
                    f"no NameServer has answered in {START_S:g} s", ";".join(client.routes.name_servers)
                ) from None
            return
        await asyncio.sleep(_RETRY_S)


async def check_expression(client: ClientInstance, group: str, subscription: SubscriptionData) -> None:
    """Raises BrokerError if a broker of the topic rejects the expression. Tags are always valid."""
    if subscription.expression_type == EXPRESSION_TAG:
        return
    route = client.routes.cached(subscription.topic)
    names = {queues.broker_name for queues in route.queue_datas} if route is not None else set()
    body = encode_json(CheckClientRequestBody(client.client_id, group, subscription))
    for name in sorted(names):
        address = client.routes.master_address(name)
        if address is None:
            continue
        try:
            await client.remoting.call(
                address, RemotingCommand.request(RequestCode.CHECK_CLIENT_CONFIG, body=body), _TIMEOUT_MS
            )
        except BrokerError as e:
            if e.code in _WRONG_EXPRESSION:
                raise
        except GantryError as e:
            client.failure_log.report(f"can't have broker {name} check a subscription of group {group}", e)
