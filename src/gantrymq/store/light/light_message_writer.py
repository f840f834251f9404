"""Appends messages, and dispatches those that name light queues (`CommitLog.handlePropertiesForLmqMsg`)."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.limits import LIGHT_QUEUES_OF_MESSAGE
from gantrymq.logs import peer_log
from gantrymq.protocol.multi_dispatch import (
    DISPATCH_MARK,
    MULTI_QUEUE_OFFSET,
    allows_light_queues,
    dispatch_problem,
    named_queues,
    with_queue_offsets,
)
from gantrymq.protocol.properties import without_property
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.light.light_queues import LightQueues
from gantrymq.store.message_writer import PutResult

log = peer_log(__name__)

_DISPATCH_TEXT = DISPATCH_MARK.decode()
_OFFSETS = MULTI_QUEUE_OFFSET.encode()


class LightMessageWriter:
    """Appends messages with `append_record`, which is `MessageWriter.append`."""

    def __init__(self, append_record: Callable[..., PutResult], queues: LightQueues) -> None:
        self._append = append_record
        self._queues = queues

    def append(
        self,
        queue: ConsumeQueue,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        body: bytes,
        properties: bytes,
        tags_code: int,
        prepared_transaction_offset: int = 0,
    ) -> PutResult:
        """Stores a message as `MessageWriter.append` does, and dispatches it to the light queues that it names.

        A message with an illegal list of names is stored, but not dispatched. The broker refuses such a message in a
        send, but delayed and half messages can be older than the rule.

        Raises the errors of `MessageWriter.append`, and StoreError. Nothing is stored then.
        """
        queues = None
        # `in` takes 45 ns in a str and 300 ns in bytes.
        is_named = _DISPATCH_TEXT in properties.decode("latin-1")
        if is_named and not sys_flag & TRANSACTION_PREPARED and allows_light_queues(queue.topic):
            problem = dispatch_problem(properties, LIGHT_QUEUES_OF_MESSAGE)
            if problem is None:
                queues = self._queues.named(named_queues(properties))
            else:
                log.warning("a message of topic %s is not dispatched: %s", queue.topic, problem)
                properties = without_property(properties, _OFFSETS)
        if queues:
            offsets = [None if light is None else light.max_offset for light in queues]
            properties = with_queue_offsets(properties, offsets)
        result = self._append(
            queue,
            flag,
            sys_flag,
            born_timestamp,
            born_host,
            reconsume_times,
            body,
            properties,
            tags_code,
            prepared_transaction_offset,
        )
        if queues:
            self._queues.add(queues, result, tags_code)
        return result
