"""Measures a broker with many light queues: cost of a send, memory, start. See docs/decisions/light-queues.md.

    python bench/light_queues.py --queues 1000000

Prints the CPU time of the broker for each message, from received to sent bytes, with the commits of units. Waits for
the disk do not count. The sends to light queues come after those to ordinary queues. A message names one light queue.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from light_queue_engines import rss_mib
from micro import FRAMES_PER_READ, QUEUES, TOPIC, ServedConnection
from result_files import add_out, recorded

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.client.producing.send_command import send_command
from gantrymq.protocol.message import MessageQueue
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.connection_limits import ConnectionLimits
from gantrymq.remoting.time_slices import TimeSlices
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from transports import Swallowing  # isort: skip

BODY = bytes(128)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0] if __doc__ else None)
    parser.add_argument("--queues", type=int, default=1_000_000, help="light queues (%(default)s)")
    parser.add_argument("--count", type=int, default=100_000, help="messages in each other row (%(default)s)")
    parser.add_argument("--directory", type=Path, help="where the store goes (the temporary directory)")
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    add_out(parser)
    args = parser.parse_args()
    if args.start is not None:
        asyncio.run(start_again(args.start, args.queues))
        return 0
    with recorded(args, "bench/light_queues.py"), tempfile.TemporaryDirectory(dir=args.directory) as directory:
        asyncio.run(run(Path(directory), args.queues, args.count))
        command = [sys.executable, __file__, f"--start={directory}", f"--queues={args.queues}"]
        print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout, end="")
    return 0


async def run(directory: Path, queues: int, count: int) -> None:
    # A broker's process collects garbage when it is idle.
    gc.disable()
    draw = random.Random(1)
    begun_mib = rss_mib()
    # The broker of the ordinary sends has a store of its own.
    ordinary = await start(directory / "ordinary", is_light=False, native_sends=False)
    measure("ordinary sends, Python", ordinary, count, iter([""] * count))
    await ordinary.broker.stop()
    ordinary = await start(directory / "native", is_light=False, native_sends=True)
    measure("ordinary sends, native code", ordinary, count, iter([""] * count))
    await ordinary.broker.stop()
    light = await start(directory / "light", is_light=True, native_sends=True)
    measure("ordinary sends, native code, enableLmq=true", light, count, iter([""] * count))
    measure("sends to 1,000 light queues", light, count, (str(draw.randrange(1000)) for _ in range(count)))
    measure("sends to new light queues", light, queues, map(str, range(queues)))
    measure("sends to any light queue", light, count, (str(draw.randrange(queues)) for _ in range(count)))
    print(f"{'memory':46} {rss_mib() - begun_mib:8.0f} MiB more than before", flush=True)
    await light.broker.stop()
    size = sum(file.stat().st_blocks * 512 for file in (directory / "light" / "lightqueue").iterdir())
    print(f"{'disk':46} {size / 2**20:8.0f} MiB", flush=True)


async def start_again(directory: Path, queues: int) -> None:
    before_mib = rss_mib()
    began = time.perf_counter()
    light = await start(directory / "light", is_light=True, native_sends=True)
    print(f"{'start':46} {time.perf_counter() - began:8.2f} s")
    store, draw = light.broker.store, random.Random(2)
    began = time.thread_time()
    for _ in range(100_000):
        queue = store.queue(f"%LMQ%sensor-{draw.randrange(queues)}", 0)
        found = store.get(queue, 0, 1, 1024)
        assert found.message_count == 1, found.status
    seconds = time.thread_time() - began
    print(f"{'first read of a light queue':46} {seconds * 10:8.1f} us")
    print(f"{'memory after 100,000 reads':46} {rss_mib() - before_mib:8.0f} MiB more than before")
    await light.broker.stop()


async def start(directory: Path, *, is_light: bool, native_sends: bool) -> ServedConnection:
    store = StoreConfig(store_path_root_dir=directory, enable_lmq=is_light)
    broker = Broker(BrokerConfig(broker_name="micro", bind_address="127.0.0.1", listen_port=0, store=store))
    await broker.start()
    slices = TimeSlices()
    first_look = broker.features.sending.first_look if native_sends else None
    connection = Connection(broker.handlers, is_server=True, limits=ConnectionLimits(slices), first_look=first_look)
    transport = Swallowing()
    connection.connection_made(transport)
    return ServedConnection(broker, connection, transport, slices)


def measure(name: str, served: ServedConnection, count: int, queues: Iterator[str]) -> None:
    left = count
    store = served.broker.store
    end = messages_in(store)
    preparing = 0.0
    began = time.process_time()
    with store.waiting():
        while left:
            # The units may be committed at the same time.
            preparing_began = time.thread_time()
            number = min(left, 1000)
            frames = [send_frame(left - n, next(queues)) for n in range(number)]
            reads = [b"".join(frames[i : i + FRAMES_PER_READ]) for i in range(0, number, FRAMES_PER_READ)]
            left -= number
            preparing += time.thread_time() - preparing_began
            served.receive(reads)
            if store.light is not None:
                # The disk can be slower than the sends. The broker would refuse them then.
                store.light.flush()
    spent = time.process_time() - began - preparing
    stored = messages_in(store) - end
    assert stored == count, f"{stored} of {count} messages were stored"
    print(f"{name:46} {spent / count * 1e6:8.1f} us/message", flush=True)


def messages_in(store: MessageStore) -> int:
    """Returns the number of messages that were sent to the topic."""
    return sum(store.queue(TOPIC, queue_id).max_offset for queue_id in range(QUEUES))


def send_frame(number: int, queue: str) -> bytes:
    properties = b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02" % number
    if queue:
        properties += b"INNER_MULTI_DISPATCH\x01%%LMQ%%sensor-%b\x02" % queue.encode()
    queue_of_topic = MessageQueue(TOPIC, "micro", number % QUEUES)
    command = send_command("benchmark_producer", queue_of_topic, BODY, properties, 1_700_000_000_000 + number)
    command.opaque = number
    return command.encode()


if __name__ == "__main__":
    sys.exit(main())
