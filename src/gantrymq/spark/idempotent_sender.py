"""Sends the rows of a write with exactlyOnce, so that brokers can tell which of them they have (`protocol.row_ids`).

The number or the sharding key of a row selects one of the write's queues. These are the queues of an earlier attempt if
brokers have rows of it, else those that the driver has found. Rows are sent to each queue in order, one request after
the other, and to all queues at once. If a broker is away, its rows wait for it, because another queue could have them
twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

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
from gantrymq.spark.batch_bodies import Encoded, PlainRows, SequencedBatch, requests_of
from gantrymq.spark.cluster import BrokersAway, Cluster
from gantrymq.spark.of_each import all_of, of_each
from gantrymq.spark.options import PRODUCER_GROUP, WriteOptions
from gantrymq.spark.row_messages import NumberedRow, TopicMessages
from gantrymq.spark.sender import naming_rows, queue_of
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

#: So many successive rows go to one queue, then as many to the next.
ROWS_IN_A_ROW = 1000


async def queues_to_write(cluster: Cluster, options: WriteOptions) -> list[MessageQueue]:
    """The topic's queues, when all of its brokers are there.

    Raises BrokersAway for missing brokers of expectedBrokers and lost brokers of NameServers, NoRouteInfo at once for a
    topic that doesn't exist, or ClientError.
    """
    topic = options.topic
    assert topic is not None, "exactlyOnce needs it"

    async def attempt() -> list[MessageQueue]:
        queues = await cluster.all_write_queues(topic)
        lost = (await cluster.until(lambda: cluster.lost_brokers([topic]))).get(topic, set())
        if away := (options.expected_brokers | lost) - {queue.broker_name for queue in queues}:
            raise BrokersAway(
                f"topic {topic} is also on {', '.join(sorted(away))}, away now: with exactlyOnce no rows go elsewhere. "
                "When it won't come back: gantry admin deleteKvConfig -s LOST_BROKERS -k BROKER"
            )
        return queues

    try:
        await _check_exists(cluster, topic, options.expected_brokers)
        return await cluster.until(attempt, topic, passing=(BrokersAway,))
    except NoRouteInfo as e:
        e.add_note(
            "with exactlyOnce the topic must be there before its first row: gantry admin updateTopic "
            f"-n {';'.join(options.name_servers)} -c CLUSTER -t {topic}"
        )
        raise


async def _check_exists(cluster: Cluster, topic: str, expected_brokers: Collection[str]) -> None:
    """Raises NoRouteInfo if the topic is on no broker and can't be on a broker that is away."""
    try:
        await cluster.read_queues(topic, wait=False)
    except NoRouteInfo as e:
        registered = await cluster.brokers()
        if isinstance(e, BrokerUnavailable) or not registered or not registered.issuperset(expected_brokers):
            return
        if (await cluster.until(lambda: cluster.lost_brokers([topic]))).get(topic):
            return
        raise
    except ClientError:
        # The topic exists but can't be read.
        return


async def queues_of_attempts(
    cluster: Cluster, queues: Sequence[MessageQueue], write_id: str, partition: int
) -> Sequence[MessageQueue]:
    """The queues of an earlier attempt of the task, if brokers have them; else `queues`.

    Raises ClientError if earlier attempts had different queues.
    """
    write, _, batch = write_id.rpartition("-")
    brokers = {queue.broker_name: queue for queue in queues}
    answers = await of_each(
        brokers.values(), lambda queue: cluster.writer_queues(queue, f"{write}-{partition}", int(batch))
    )
    listed = {name: text for name, text in zip(brokers, answers, strict=True) if text}
    if not listed:
        return queues
    if len(set(listed.values())) > 1:
        raise ClientError(
            f"attempts of partition {partition} of write {write_id} have sent to different queues: {listed}"
        )
    # The form of an order topic's configuration.
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
    """Sends the rows of one task; `queues` are the same for each attempt of it."""

    def __init__(self, cluster: Cluster, queues: Sequence[MessageQueue], partition: int) -> None:
        #: Brokers that keep no account of rows.
        self.at_least_once: set[str] = set()
        self._cluster = cluster
        self._queues = list(queues)
        # Neighbours on different brokers.
        self._in_turn = sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))
        self._partition = partition
        self._places: dict[MessageQueue, Place] = {}
        #: Queues that have more rows than this attempt has sent, and up to which one.
        self._ahead: dict[MessageQueue, int] = {}
        #: Fields that are the same in each request.
        listed = _list_queues(queues)
        self._fields = {QUEUES_FIELD: listed} if len(listed) <= MAX_QUEUES_LENGTH else {}

    async def send(self, messages: dict[str, TopicMessages]) -> None:
        """Returns when all are stored. Raises what a send raises, BrokerError for other rows than another attempt's."""
        queues = self._queues
        by_queue: dict[MessageQueue, list[NumberedRow]] = {}
        plain: dict[MessageQueue, list[tuple[PlainRows, int, int]]] = {}
        free: list[NumberedRow] = []
        turn = -1
        for of_topic in messages.values():
            if (rows := of_topic.plain) is not None:
                for start, end in _turns(rows.first_row, rows.end_row):
                    plain.setdefault(self._queue_of_turn(start // ROWS_IN_A_ROW), []).append((rows, start, end))
            for row in of_topic.numbered:
                if row.sharding_key is not None:
                    by_queue.setdefault(queue_of(row.sharding_key, queues), []).append(row)
                    continue
                if row.number // ROWS_IN_A_ROW != turn:
                    turn = row.number // ROWS_IN_A_ROW
                    free = by_queue.setdefault(self._queue_of_turn(turn), [])
                free.append(row)
        await all_of(
            [
                *(self._send_in_order(queue, self._batches(queue, rows)) for queue, rows in by_queue.items()),
                *(self._send_in_order(queue, self._plain_batches(queue, parts)) for queue, parts in plain.items()),
            ]
        )

    def _queue_of_turn(self, turn: int) -> MessageQueue:
        return self._in_turn[(self._partition + turn) % len(self._in_turn)]

    def finish(self) -> None:
        """All rows are sent. Raises ClientError when another attempt has sent more."""
        for queue, last_row in self._ahead.items():
            raise ClientError(
                f"{queue.broker_name} has rows up to {last_row} of this partition in queue {queue.queue_id} of topic "
                f"{queue.topic}, and now the last one there is row {self._places[queue].row}: with exactlyOnce a "
                "partition must have the same rows in the same order whenever it is computed"
            )

    def _batches(self, queue: MessageQueue, rows: Sequence[NumberedRow]) -> Iterator[SequencedBatch]:
        target, chain = target_of(queue.topic, queue.queue_id), self._place(queue).chain
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
            yield from rows.sequenced(start, end, target, self._place(queue))

    def _place(self, queue: MessageQueue) -> Place:
        return self._places.get(queue, BEGINNING)

    async def _send_in_order(self, queue: MessageQueue, batches: Iterator[SequencedBatch]) -> None:
        for body, place in batches:
            last_row = await self._send(queue, body, self._place(queue))
            self._places[queue] = place
            if last_row is None:
                self._is_at_least_once(queue.broker_name)
            elif last_row > place.row:
                self._ahead[queue] = last_row
            else:
                self._ahead.pop(queue, None)

    async def _send(self, queue: MessageQueue, body: bytes, after: Place) -> int | None:
        """Up to which row the queue has them then; None from a broker that doesn't say."""
        field = binary_header.encode_fields({AFTER_FIELD: str(after), **self._fields})

        def command(queue: MessageQueue) -> RemotingCommand:
            request = send_command(PRODUCER_GROUP, queue, body, b"", now_ms(), batch=True)
            request.raw_ext += field
            return request

        with naming_rows(decode_batch(body)):
            return await self._cluster.send_rows(queue, command)

    def _is_at_least_once(self, broker: str) -> None:
        if broker not in self.at_least_once:
            self.at_least_once.add(broker)
            log.warning("broker %s keeps no account of rows: they are there at least once", broker)


def _turns(first_row: int, end_row: int) -> Iterator[tuple[int, int]]:
    """Rows that go to one queue: where they begin and end."""
    while first_row < end_row:
        end = min(end_row, (first_row // ROWS_IN_A_ROW + 1) * ROWS_IN_A_ROW)
        yield first_row, end
        first_row = end
