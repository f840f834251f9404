"""Appends messages, and dispatches those that name light queues (`CommitLog.handlePropertiesForLmqMsg`)."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.protocol.multi_dispatch import DISPATCH_MARK, allows_light_queues, named_queues
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.light.light_queues import LightQueues
from gantrymq.store.message_writer import PutResult


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

        Raises the errors of `MessageWriter.append` and of `LightQueues.append`; nothing is stored then.
        """

        def append(properties: bytes) -> PutResult:
            return self._append(
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

        if DISPATCH_MARK in properties and not sys_flag & TRANSACTION_PREPARED and allows_light_queues(queue.topic):
            names = named_queues(properties)
            if names:
                return self._queues.append(append, names, properties, tags_code)
        return append(properties)
