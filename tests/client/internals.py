"""Names for the internals of clients that several tests use."""

from __future__ import annotations

from gantrymq.background.loop_thread import LoopThread
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.process_queue import ProcessQueue
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.lite_consumer import LiteConsumer
from gantrymq.client.popping.popped_queues import PoppedQueues
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.blocking_sends import BlockingSends
from gantrymq.client.producing.direct_sends import DirectSends
from gantrymq.client.producing.producer import Producer
from gantrymq.sync import SyncProducer, SyncPushConsumer, SyncSimpleConsumer


def process_queues(consumer: PushConsumer) -> list[ProcessQueue]:
    assert consumer._parts
    return consumer._parts.queues.process_queues


def popped_queues(consumer: PushConsumer) -> PoppedQueues:
    assert consumer._parts
    assert consumer._parts.popped
    return consumer._parts.popped


def has_pending_requests(producer: Producer) -> bool:
    """Returns true if `request` still waits for a reply."""
    return bool(producer._requests._waiting)


def direct_sends(producer: Producer) -> DirectSends:
    assert producer._direct
    return producer._direct


def blocking_sends(producer: SyncProducer) -> BlockingSends:
    assert producer._producer._blocking
    return producer._producer._blocking


def client_of(consumer: SimpleConsumer) -> ClientInstance:
    assert consumer._client
    return consumer._client


def lite_client_of(consumer: LiteConsumer) -> ClientInstance:
    assert consumer._lite_parts
    return consumer._lite_parts.client


def thread_of(consumer: SyncPushConsumer | SyncSimpleConsumer) -> LoopThread:
    assert consumer._thread
    return consumer._thread
