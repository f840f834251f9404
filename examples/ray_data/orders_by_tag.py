"""Counts the orders of each tag with Ray Data, and writes the result to a topic: `python orders_by_tag.py`."""

import asyncio
import json
import sys

import pyarrow as pa
import ray
import ray.data

from gantrymq import LitePullConsumer
from gantrymq.arrow import read_topic, write_topic


async def queues(name_servers: str, topic: str) -> list[tuple[str, int]]:
    """Returns the broker and the id of each queue of the topic."""
    async with LitePullConsumer(name_servers, "orders-by-tag", auto_commit=False) as consumer:
        return [(queue.broker_name, queue.queue_id) for queue in await consumer.queues(topic)]


@ray.remote
def read_queue(name_servers: str, topic: str, broker: str, number: int) -> pa.Table:
    """Reads one queue in a task of Ray. The conditions select the queue before a broker sends messages."""
    queue = [("brokerName", "=", broker), ("queueId", "=", number)]
    return read_topic(name_servers, topic, columns=["tags", "body"], filter=queue).read_all()


def read(name_servers: str, topic: str) -> ray.data.Dataset:
    """Returns the messages of a topic. The tables stay in Ray's object store, and do not pass through this process."""
    found = asyncio.run(queues(name_servers, topic))
    return ray.data.from_arrow_refs([read_queue.remote(name_servers, topic, *queue) for queue in found])


def run(name_servers: str) -> int:
    """Writes the number of orders of each tag to the topic `orders-by-tag`. Returns the number of tags."""
    count = 0
    for row in read(name_servers, "orders").groupby("tags").count().iter_rows():
        body = json.dumps({"tag": row["tags"], "orders": row["count()"]})
        count += write_topic(name_servers, "orders-by-tag", pa.table({"body": [body], "keys": [row["tags"]]}))
    return count


if __name__ == "__main__":
    print("tags:", run(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
