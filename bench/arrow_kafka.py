"""Arrow batches from and to Kafka with confluent-kafka, converted by hand, for `arrow.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

#: Messages of a call of `consume`, and rows of a batch.
BATCH_ROWS = 10_000
_TIMEOUT_S = 30.0
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.string()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("ms", "UTC")),
    ]
)


def read_kafka(address: str, topic: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Yields `rows` messages of a topic from its start. Checks the CRC32 of batches, as `read_topic` does of bodies."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False, "check.crcs": True}
    )
    try:
        partitions = consumer.list_topics(topic, _TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        while rows > 0:
            messages = consumer.consume(min(BATCH_ROWS, rows), _TIMEOUT_S)
            if not messages:
                raise RuntimeError(f"{rows} messages of {topic} are missing")
            rows -= len(messages)
            yield _batch(messages)
    finally:
        consumer.close()


def _batch(messages: list[Message]) -> pa.RecordBatch:
    if error := next((message.error() for message in messages if message.error()), None):
        raise RuntimeError(f"Kafka: {error}")
    columns = [
        [message.topic() for message in messages],
        [message.partition() for message in messages],
        [message.offset() for message in messages],
        [message.key() for message in messages],
        [message.value() for message in messages],
        [message.timestamp()[1] for message in messages],
    ]
    return pa.record_batch([pa.array(*each) for each in zip(columns, _SCHEMA.types, strict=True)], schema=_SCHEMA)


def write_kafka(address: str, topic: str, batches: pa.RecordBatchReader) -> int:
    """Sends the columns `keys` and `body`, and waits for all acknowledgements. Returns the number of rows."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50})
    rows = 0
    for batch in batches:
        for key, body in zip(batch["keys"].to_pylist(), batch["body"].to_pylist(), strict=True):
            while True:
                try:
                    producer.produce(topic, body, key)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
        rows += batch.num_rows
    if left := producer.flush(_TIMEOUT_S):
        raise RuntimeError(f"{left} messages of {topic} are not acknowledged")
    return rows
