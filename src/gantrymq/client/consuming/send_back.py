"""SendBack: sends a failed message back to the broker, which redelivers it later.

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
from gantrymq.protocol.delay_levels import DEFAULT_DELAY_LEVELS
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeaderV2
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC, retry_topic
from gantrymq.system import randomness
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

_TIMEOUT_MS = 5000
#: Delay level of a message that failed for the first time (10 s by default).
_FIRST_DELAY_LEVEL = 3
#: Group of the producer inside a consumer (`MixAll.CLIENT_INNER_PRODUCER_GROUP`).
_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"


class SendBack:
    """Sends back messages of one group. After `max_reconsume_times`, a message goes to the dead-letter queue."""

    def __init__(self, client: ClientInstance, group: str, max_reconsume_times: int) -> None:
        self._client = client
        self._group = group
        self._max_reconsume_times = max_reconsume_times

    def following(self, message: MessageExt, delay_level: int = 0) -> str:
        """Returns the effect of `send_back`, for a log line (AbstractSendMessageProcessor.consumerSendMsgBack)."""
        if message.reconsume_times >= self._max_reconsume_times:
            return "goes to the dead-letter queue"
        delays = DEFAULT_DELAY_LEVELS.split()
        level = min(delay_level or _FIRST_DELAY_LEVEL + message.reconsume_times, len(delays))
        return f"next attempt after delay level {level} ({delays[level - 1]} by default)"

    async def send_back(self, message: MessageExt, topic: str, delay_level: int = 0) -> None:
        """Sends a failed message back to its broker. If the request fails, sends a new message to the retry topic.

        `topic` is the topic with its namespace. With `delay_level` 0, the delay grows with each retry. Raises a
        GantryError if both requests fail, or if the broker has stored the message but its slaves may not have it.
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
                # A new message would wait for the same slaves, or be a duplicate.
                raise
            log.warning("can't send %s back, sending it anew: %s", message.msg_id, e)
            await self.send_anew(message, topic)

    async def send_anew(self, message: MessageExt, topic: str) -> None:
        """Sends the message to a queue of the retry topic, on any broker, which can make it a dead-letter message.

        Raises a GantryError. This can mean that the broker has stored the message, but its slaves may not have it.
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
        # With the stored body, so that an undecodable message can be examined in the dead-letter queue.
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
        assert address is not None  # `write_queues` returns only queues of brokers with a master.
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, message.stored_body)
        result = await self._client.api.send(address, command, queue, timeout_ms=_TIMEOUT_MS)
        if result.status is SendStatus.FLUSH_SLAVE_TIMEOUT:
            raise BrokerError(ResponseCode.FLUSH_SLAVE_TIMEOUT, "its slaves haven't got the message yet", address)
