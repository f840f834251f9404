"""SendBack: gives a message that its handler failed on back to the broker, which delivers it again later.

Source: client/impl/consumer/DefaultMQPushConsumerImpl (sendMessageBack, sendMessageBackAsNormalMessage).
"""

from __future__ import annotations

from gantrymq.client.broker_api import SendStatus
from gantrymq.client.client_instance import ClientInstance
from gantrymq.errors import BrokerError, ConnectFailed, GantryError, NoRouteInfo
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeaderV2
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC, retry_topic
from gantrymq.system import randomness
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

_TIMEOUT_MS = 5000
#: The delay level of a message that failed for the first time (10 s by default).
_FIRST_DELAY_LEVEL = 3
#: Of the producer inside a consumer (`MixAll.CLIENT_INNER_PRODUCER_GROUP`).
_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"


class SendBack:
    """For one group. After `max_reconsume_times` a message goes to the dead letter queue instead."""

    def __init__(self, client: ClientInstance, group: str, max_reconsume_times: int) -> None:
        self._client = client
        self._group = group
        self._max_reconsume_times = max_reconsume_times

    async def send_back(self, message: MessageExt, topic: str, delay_level: int = 0) -> None:
        """Has the broker that holds the message deliver it again; if that fails, sends it anew to the retry topic.

        `topic` is the one that brokers know it by; `delay_level` 0 means: longer and longer. Raises a GantryError when
        both fail, and where the broker has stored it and says that slaves may never have it.
        """
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.commit_log_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=topic,
            max_reconsume_times=self._max_reconsume_times,
            bname=message.broker_name,
        )
        try:
            address = self._client.routes.master_address(message.broker_name)
            if address is None:
                raise ConnectFailed(f"no route names a master of broker {message.broker_name}", message.broker_name)
            await self._client.api.send_back(address, header, _TIMEOUT_MS)
        except GantryError as e:
            if isinstance(e, BrokerError) and e.code == ResponseCode.FLUSH_SLAVE_TIMEOUT:
                # Sent anew it would wait for the same slaves, or be there twice.
                raise
            log.warning("can't send %s back, sending it anew: %s", message.msg_id, e)
            await self.send_anew(message, topic)

    async def send_anew(self, message: MessageExt, topic: str) -> None:
        """Sends the message to the retry topic, whoever has a queue of it; from there it may go to the dead letters.

        Raises a GantryError, also where the broker has stored it and says that slaves may never have it.
        """
        retry = retry_topic(self._group)
        queues = await self._client.routes.write_queues(retry)
        if not queues:
            raise NoRouteInfo(retry, self._client.routes.name_servers)
        queue = randomness.choice(queues)
        properties = dict(message.properties)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.msg_id)
        properties[names.RETRY_TOPIC] = topic
        properties[names.DELAY_TIME_LEVEL] = str(_FIRST_DELAY_LEVEL + message.reconsume_times)
        properties.pop(names.TRANSACTION_PREPARED, None)
        # As it is stored: one that doesn't decompress is for whoever looks at the dead letters.
        header = SendMessageRequestHeaderV2(
            producer_group=_PRODUCER_GROUP,
            topic=retry,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=len(queues),
            queue_id=queue.queue_id,
            sys_flag=message.compression_flags,
            born_timestamp=now_ms(),
            flag=message.flag,
            properties=encode_properties(properties).decode(),
            reconsume_times=message.reconsume_times + 1,
            unit_mode=False,
            max_reconsume_times=self._max_reconsume_times,
            batch=False,
            broker_name=queue.broker_name,
        )
        address = self._client.routes.master_address(queue.broker_name)
        assert address is not None  # write_queues names brokers with a master only
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, message.stored_body)
        result = await self._client.api.send(address, command, queue, timeout_ms=_TIMEOUT_MS)
        if result.status is SendStatus.FLUSH_SLAVE_TIMEOUT:
            raise BrokerError(ResponseCode.FLUSH_SLAVE_TIMEOUT, "its slaves haven't got the message yet", address)
