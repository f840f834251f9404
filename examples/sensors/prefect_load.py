"""A flow of Prefect that writes the new messages of a topic to a file, and announces it: `python prefect_load.py`."""

import json
from pathlib import Path

from prefect import flow, task

from gantrymq import LitePullConsumer, Message, Producer, SyncLitePullConsumer, SyncProducer

#: The task ends if no message arrives for this time, in seconds.
IDLE_S = 10.0


@task(retries=3, retry_delay_seconds=30)
def load(name_servers: str, path: Path) -> int:
    """Appends the messages to the file and commits their offsets. A retry continues after the last commit."""
    consumer = LitePullConsumer(name_servers, "warehouse", start_from="earliest", auto_commit=False)
    consumer.subscribe("orders")
    count = 0
    with SyncLitePullConsumer(consumer) as reader, path.open("ab") as file:
        while messages := reader.poll(timeout=IDLE_S, max_messages=1000):
            for message in messages:
                file.write(message.body + b"\n")
            file.flush()
            # After the write: if the task fails in between, its retry writes these messages again.
            reader.commit()
            count += len(messages)
    return count


@task(retries=3, retry_delay_seconds=5)
def announce(name_servers: str, path: Path, count: int) -> None:
    body = json.dumps({"path": str(path), "messages": count}).encode()
    with SyncProducer(Producer(name_servers, "prefect")) as producer:
        producer.send(Message("loads", body))


@flow
def load_orders(name_servers: str = "127.0.0.1:9876", path: Path = Path("orders.jsonl")) -> int:
    count = load(name_servers, path)
    if count:
        announce(name_servers, path, count)
    return count


if __name__ == "__main__":
    load_orders()
