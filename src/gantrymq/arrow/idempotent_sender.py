"""`IdempotentSender` sends the rows of a write with exactlyOnce, so that brokers drop duplicates (`protocol.row_ids`).

The number of a row, its sharding key or its columns select one of the write's queues. If brokers have rows of an
earlier attempt, the write uses the queues of this attempt. Otherwise they come from `find_write_queues`, which Spark
calls on the driver. Requests to one queue are sent one after the other, and requests to different queues concurrently.
If a broker is down, the sender retries with the same queue, because another queue could store the rows again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from gantrymq.arrow.batch_bodies import Encoded, PlainRows, SequencedBatch, requests_of
from gantrymq.arrow.cluster_client import BrokersAway, ClusterClient
from gantrymq.arrow.concurrent_requests import request_each, run_all
from gantrymq.arrow.options import PRODUCER_GROUP, WriteOptions
from gantrymq.arrow.row_messages import NumberedRow, TopicMessages
from gantrymq.arrow.row_sender import queue_of, rows_in_errors
from gantrymq.client.producing.send_command import send_command
from gantrymq.client.routes import write_queues
from gantrymq.errors import BrokerUnavailable, ClientError, NoRouteInfo
from gantrymq.logs import peer_log
from gantrymq.protocol import binary_header
from gantrymq.protocol.batch import decode_batch, encode_batch
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.row_ids import (
    AFTER_FIELD,
    BEGINNING,
    MAX_QUEUES_LENGTH,
    QUEUES_FIELD,
    Place,
    next_chain,
    sequence_property,
    target_of,
)
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

#: Number of successive rows that go to one queue before the next rows go to the next queue.
ROWS_PER_TURN = 1000


async def find_write_queues(cluster: ClusterClient, options: WriteOptions) -> list[MessageQueue]:
    """Checks that all brokers of the topic are up, then returns the topic's writable queues.

    Raises:
        BrokersAway: A broker of expectedBrokers, or a lost broker of a NameServer, is down. Raised after retries.
        NoRouteInfo: The topic doesn't exist. Raised without a retry.
        ClientError: The topic has no writable queue.
    """
    topic = options.topic
    assert topic is not None, "exactlyOnce needs it"

    async def attempt() -> list[MessageQueue]:
        queues = await cluster.all_write_queues(topic)
        lost = (await cluster.retry(lambda: cluster.lost_brokers([topic]))).get(topic, set())
        if away := (options.expected_brokers | lost) - {queue.broker_name for queue in queues}:
            raise BrokersAway(
                f"topic {topic} is also on {', '.join(sorted(away))}, away now: with exactlyOnce no rows go elsewhere. "
                "If it doesn't come back: gantry admin deleteKvConfig -s LOST_BROKERS -k BROKER"
            )
        return queues

    try:
        await _check_exists(cluster, topic, options.expected_brokers)
        return await cluster.retry(attempt, topic, passing=(BrokersAway,))
    except NoRouteInfo as e:
        e.add_note(
            "with exactlyOnce the topic must exist before its first row: gantry admin updateTopic "
            f"-n {';'.join(options.name_servers)} -c CLUSTER -t {topic}"
        )
        raise


async def _check_exists(cluster: ClusterClient, topic: str, expected_brokers: Collection[str]) -> None:
    """Raises NoRouteInfo if the topic doesn't exist, unless a broker that is down can have the topic."""
    try:
        await cluster.read_queues(topic, wait=False)
    except NoRouteInfo as e:
        registered = await cluster.brokers()
        if isinstance(e, BrokerUnavailable) or not registered or not registered.issuperset(expected_brokers):
            return
        if (await cluster.retry(lambda: cluster.lost_brokers([topic]))).get(topic):
            return
        raise
    except ClientError:
        # The topic exists but can't be read.
        return


async def queues_of_earlier_attempt(
    cluster: ClusterClient, queues: Sequence[MessageQueue], write_id: str, partition: int
) -> Sequence[MessageQueue]:
    """Returns the queues of an earlier attempt of the task if brokers have recorded them, otherwise `queues`.

    Raises ClientError if earlier attempts had different queues.
    """
    write, _, batch = write_id.rpartition("-")
    brokers = {queue.broker_name: queue for queue in queues}
    responses = await request_each(
        brokers.values(), lambda queue: cluster.writer_queues(queue, f"{write}-{partition}", int(batch))
    )
    listed = {name: text for name, text in zip(brokers, responses, strict=True) if text}
    if not listed:
        return queues
    if len(set(listed.values())) > 1:
        raise ClientError(
            f"attempts of partition {partition} of write {write_id} have sent to different queues: {listed}"
        )
    # The list has the format of an order topic's configuration.
    found = write_queues(queues[0].topic, TopicRouteData(order_topic_conf=next(iter(listed.values()))))
    if found != list(queues):
        log.warning(
            "partition %d of write %s goes to the queues of its first attempt, %s, although the topic has %s",
            partition,
            write_id,
            _list_queues(found),
            _list_queues(queues),
        )
    return found


def _list_queues(queues: Sequence[MessageQueue]) -> str:
    counts = Counter(queue.broker_name for queue in queues)
    return ";".join(f"{broker}:{count}" for broker, count in counts.items())


class IdempotentSender:
    """Sends the rows of one task. `queues` must be the same in each attempt."""

    def __init__(self, cluster: ClusterClient, queues: Sequence[MessageQueue], partition: int) -> None:
        #: Brokers that don't track rows.
        self.at_least_once: set[str] = set()
        self._cluster = cluster
        self._queues = list(queues)
        # The queues are ordered so that successive queues are on different brokers.
        self._in_turn = sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))
        self._partition = partition
        self._places: dict[MessageQueue, Place] = {}
        #: {queue: last row in this queue}, for queues with more rows than this attempt has sent.
        self._ahead: dict[MessageQueue, int] = {}
        #: Header fields that are the same in each request.
        listed = _list_queues(queues)
        self._fields = {QUEUES_FIELD: listed} if len(listed) <= MAX_QUEUES_LENGTH else {}

    async def send(self, messages: dict[str, TopicMessages]) -> None:
        """Sends messages by topic, and returns after all of them are stored.

        Raises the errors of a send, and BrokerError if an earlier attempt had other rows.
        """
        queues = self._queues
        by_queue: dict[MessageQueue, list[NumberedRow]] = {}
        plain: dict[MessageQueue, list[tuple[PlainRows, int, int]]] = {}
        free: list[NumberedRow] = []
        turn = -1
        for of_topic in messages.values():
            if (rows := of_topic.plain) is not None:
                for start, end in _turns(rows.first_row, rows.end_row):
                    plain.setdefault(self._queue_of_turn(start // ROWS_PER_TURN), []).append((rows, start, end))
            for row in of_topic.numbered:
                if row.queue_key is not None:
                    by_queue.setdefault(queue_of(row.queue_key, queues), []).append(row)
                    continue
                if row.number // ROWS_PER_TURN != turn:
                    turn = row.number // ROWS_PER_TURN
                    free = by_queue.setdefault(self._queue_of_turn(turn), [])
                free.append(row)
        await run_all(
            [
                *(self._send_in_order(queue, self._batches(queue, rows)) for queue, rows in by_queue.items()),
                *(self._send_in_order(queue, self._plain_batches(queue, parts)) for queue, parts in plain.items()),
            ]
        )

    def _queue_of_turn(self, turn: int) -> MessageQueue:
        return self._in_turn[(self._partition + turn) % len(self._in_turn)]

    def finish(self) -> None:
        """Call this after the last row. Raises ClientError if an earlier attempt has sent more rows."""
        for queue, last_row in self._ahead.items():
            raise ClientError(
                f"{queue.broker_name} has rows up to {last_row} of this partition in queue {queue.queue_id} of topic "
                f"{queue.topic}, but this attempt ends there with row {self._places[queue].row}: with exactlyOnce a "
                "partition must have the same rows in the same order whenever it is computed"
            )

    def _batches(self, queue: MessageQueue, rows: Sequence[NumberedRow]) -> Iterator[SequencedBatch]:
        target, chain = target_of(queue.topic, queue.queue_id), self.last_place(queue).chain
        chains, messages = list[int](), list[Encoded]()
        for _, _, digest, (flag, body, properties) in rows:
            chain = next_chain(chain, digest)
            chains.append(chain)
            messages.append((flag, body, properties + sequence_property(target, chain)))
        done = 0
        for request in requests_of(messages):
            done += len(request)
            yield SequencedBatch(encode_batch(request), Place(rows[done - 1].number, chains[done - 1]))

    def _plain_batches(
        self, queue: MessageQueue, parts: Sequence[tuple[PlainRows, int, int]]
    ) -> Iterator[SequencedBatch]:
        target = target_of(queue.topic, queue.queue_id)
        for rows, start, end in parts:
            yield from rows.sequenced(start, end, target, self.last_place(queue))

    def last_place(self, queue: MessageQueue) -> Place:
        """Returns the writer's position after its last message in this queue, or BEGINNING."""
        return self._places.get(queue, BEGINNING)

    async def _send_in_order(self, queue: MessageQueue, batches: Iterator[SequencedBatch]) -> None:
        for body, place in batches:
            last_row = await self._send(queue, body, self.last_place(queue))
            self._places[queue] = place
            if last_row is None:
                self._is_at_least_once(queue.broker_name)
            elif last_row > place.row:
                self._ahead[queue] = last_row
            else:
                self._ahead.pop(queue, None)

    async def _send(self, queue: MessageQueue, body: bytes, after: Place) -> int | None:
        """Sends a batch, and returns the last row of the queue; None if the broker doesn't track rows."""
        field = binary_header.encode_fields({AFTER_FIELD: str(after), **self._fields})

        def command(queue: MessageQueue) -> RemotingCommand:
            request = send_command(PRODUCER_GROUP, queue, body, b"", now_ms(), batch=True)
            request.raw_ext += field
            return request

        with rows_in_errors(decode_batch(body)):
            return await self._cluster.send_rows(queue, command)

    def _is_at_least_once(self, broker: str) -> None:
        if broker not in self.at_least_once:
            self.at_least_once.add(broker)
            log.warning("broker %s doesn't track rows: they are stored at least once", broker)


def _turns(first_row: int, end_row: int) -> Iterator[tuple[int, int]]:
    """Divides rows into groups for one queue each. Yields the first row and the end (excluded) of each group."""
    while first_row < end_row:
        end = min(end_row, (first_row // ROWS_PER_TURN + 1) * ROWS_PER_TURN)
        yield first_row, end
        first_row = end
