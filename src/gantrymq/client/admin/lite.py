"""Lite topics: what a broker has of them, who reads them, and how far."""

from __future__ import annotations

from gantrymq.client.admin.base import AdminBase
from gantrymq.protocol.bodies.lite import (
    BrokerLiteInfoBody,
    LiteClientInfoBody,
    LiteGroupInfoBody,
    LiteTopicInfoBody,
    ParentTopicInfoBody,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.lite import (
    GetLiteClientInfoRequestHeader,
    GetLiteGroupInfoRequestHeader,
    GetLiteTopicInfoRequestHeader,
    GetParentTopicInfoRequestHeader,
    TriggerLiteDispatchRequestHeader,
)


class AdminLite(AdminBase):
    """Requests about lite topics to one broker. An `address` is HOST:PORT. Needs brokers with `enableLmq`."""

    async def broker_lite_info(self, address: str) -> BrokerLiteInfoBody:
        """Returns the number of light queues and subscriptions of a broker, its parent topics, and their groups."""
        response = await self._call(address, RequestCode.GET_BROKER_LITE_INFO)
        return decode_json(response.body, BrokerLiteInfoBody)

    async def parent_topic_info(self, address: str, topic: str) -> ParentTopicInfoBody:
        """Returns the number of lite topics of a parent topic on a broker, their expiration, and their groups."""
        header = GetParentTopicInfoRequestHeader(topic=topic)
        response = await self._call(address, RequestCode.GET_PARENT_TOPIC_INFO, header)
        return decode_json(response.body, ParentTopicInfoBody)

    async def lite_topic_info(self, address: str, topic: str, lite_topic: str) -> LiteTopicInfoBody:
        """Returns the offsets of a lite topic on a broker, and its subscribers."""
        header = GetLiteTopicInfoRequestHeader(parent_topic=topic, lite_topic=lite_topic)
        response = await self._call(address, RequestCode.GET_LITE_TOPIC_INFO, header)
        return decode_json(response.body, LiteTopicInfoBody)

    async def lite_client_info(
        self, address: str, topic: str, group: str, client_id: str, *, max_count: int = 1000
    ) -> LiteClientInfoBody:
        """Returns the lite topics of a client on a broker, by the names of their light queues.

        Args:
            address: The broker.
            topic: The parent topic.
            group: The group of the client.
            client_id: The client. If the broker does not know it, the number of its lite topics is -1.
            max_count: Largest number of names in the result.
        """
        header = GetLiteClientInfoRequestHeader(
            parent_topic=topic, group=group, client_id=client_id, max_count=max_count
        )
        response = await self._call(address, RequestCode.GET_LITE_CLIENT_INFO, header)
        return decode_json(response.body, LiteClientInfoBody)

    async def lite_group_info(
        self, address: str, group: str, lite_topic: str | None = None, *, top_k: int = 20
    ) -> LiteGroupInfoBody:
        """Returns the lag of a group on a broker: in one lite topic, or in all with the `top_k` largest lags."""
        header = GetLiteGroupInfoRequestHeader(group=group, lite_topic=lite_topic, top_k=top_k)
        response = await self._call(address, RequestCode.GET_LITE_GROUP_INFO, header)
        return decode_json(response.body, LiteGroupInfoBody)

    async def trigger_lite_dispatch(self, address: str, group: str, client_id: str | None = None) -> None:
        """Has a broker dispatch all lite topics with messages to the clients of a group, or to one client."""
        header = TriggerLiteDispatchRequestHeader(group=group, client_id=client_id)
        await self._call(address, RequestCode.TRIGGER_LITE_DISPATCH, header)
