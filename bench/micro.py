"""Measures each step of the broker's hot path on its own: nanoseconds of CPU time per message. See README.md."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from result_files import add_out, recorded

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.client.producing.send_command import send_command
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.record import encode_host, encode_record
from gantrymq.protocol.send_request import decode_send_request
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.connection_limits import ConnectionLimits
from gantrymq.remoting.time_slices import SLICE_S, TimeSlices
from gantrymq.store.config import StoreConfig

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from transports import Swallowing  # isort: skip

TOPIC = "BenchmarkTest"
QUEUES = 8
#: Number of requests per read, as with 32 threads that send over one connection to a busy broker.
FRAMES_PER_READ = 32
PULL_BATCH = 32
BORN_HOST = encode_host("127.0.0.1", 40000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--size", type=int, default=128, help="bytes of a body (%(default)s)")
    parser.add_argument("--count", type=int, default=20_000, help="messages in one repetition (%(default)s)")
    parser.add_argument("--repeat", type=int, default=7, help="repetitions (%(default)s)")
    add_out(parser)
    args = parser.parse_args()
    with recorded(args, "bench/micro.py"), tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory), args.size, args.count // FRAMES_PER_READ * FRAMES_PER_READ, args.repeat))
    return 0


async def run(directory: Path, size: int, count: int, repeat: int) -> None:
    """Measures every step, in the order in which a message passes them.

    Uses a real broker with its files in `directory`.
    """
    body = b"x" * size
    frames = [send_frame(number, body) for number in range(count)]
    reads = [b"".join(frames[i : i + FRAMES_PER_READ]) for i in range(0, count, FRAMES_PER_READ)]
    requests = [command for read in reads for command in FrameReader().feed(read)]
    headers = [decode_send_request(request) for request in requests]

    served = await start_broker(directory)
    broker, connection = served.broker, served.connection
    store, queue = broker.store, broker.store.queue("micro", 0)
    send = broker.handlers[RequestCode.SEND_MESSAGE_V2]
    topic = TOPIC.encode()
    # Pulls messages that the send handler has stored before.
    pulls = [pull_frame(number * PULL_BATCH // QUEUES // 2) for number in range(count // PULL_BATCH)]

    def read_frames() -> None:
        reader = FrameReader()
        for data in reads:
            for _ in reader.feed(data):
                pass

    def decode_headers() -> None:
        for request in requests:
            decode_send_request(request)

    def encode_records() -> None:
        for header in headers:
            encode_record(
                3, 0, 1, 1000, 0, header.born_timestamp, BORN_HOST, 1, BORN_HOST, 0, 0, body, topic, header.properties
            )

    def append() -> None:
        for header in headers:
            store.append(queue, 0, 0, header.born_timestamp, BORN_HOST, 0, body, header.properties, 0)

    def handle_sends() -> None:
        for request in requests:
            send(connection, request)

    for name, piece in (
        ("frame reader", read_frames),
        ("decode_send_request", decode_headers),
        ("encode_record", encode_records),
        ("store append (with encode_record)", append),
        ("send handler (header to answer)", handle_sends),
        ("connection: bytes read to bytes written", partial(served.receive, reads)),
        (f"the same for pulls of {PULL_BATCH} messages", partial(served.receive, pulls)),
    ):
        # The callers here do not retry while a file is preallocated.
        with store.waiting():
            print(f"{name:42} {measure(piece, count, repeat)}", flush=True)
    # Error responses are fast, too, so the size of the responses is checked.
    least = count * size * (1 + repeat)
    written = served.transport.written
    assert written > least, f"{written} bytes were answered, the pulls alone ask for {least}"
    connection.connection_lost(None)
    await broker.stop()


class ServedConnection(NamedTuple):
    """A connection of a broker, without a socket."""

    broker: Broker
    connection: Connection
    transport: Swallowing
    slices: TimeSlices

    def receive(self, reads: list[bytes]) -> None:
        """Lets the broker answer all requests of these reads."""
        for data in reads:
            self.connection.data_received(data)
            # The event loop does not run here, so it cannot start the next iteration itself.
            while self.connection.is_behind or self.slices.used > SLICE_S:
                self.slices.new_round()


async def start_broker(directory: Path, *, native_sends: bool = False) -> ServedConnection:
    """Starts a broker with its files in `directory`, and connects to it.

    With `native_sends`, native code handles plain sends before they are decoded, as for the connections of a server.
    """
    config = BrokerConfig(
        broker_name="micro",
        bind_address="127.0.0.1",
        listen_port=0,
        store=StoreConfig(store_path_root_dir=directory),
    )
    broker = Broker(config)
    await broker.start()
    slices = TimeSlices()
    first_look = broker.features.sending.first_look if native_sends else None
    connection = Connection(broker.handlers, is_server=True, limits=ConnectionLimits(slices), first_look=first_look)
    transport = Swallowing()
    connection.connection_made(transport)
    return ServedConnection(broker, connection, transport, slices)


def measure(piece: Callable[[], None], count: int, repeat: int) -> str:
    """Returns the best and the median of the repetitions.

    The times are CPU times of this thread, so that other programs do not count.
    """
    piece()
    times = []
    for _ in range(repeat):
        began = time.thread_time_ns()
        piece()
        times.append((time.thread_time_ns() - began) / count)
    return f"{min(times):8.0f} ns/message (median {statistics.median(times):.0f})"


def send_frame(number: int, body: bytes) -> bytes:
    """Returns a send request as Apache's benchmark producer sends it."""
    properties = b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02" % number
    command = send_command(
        "benchmark_producer",
        MessageQueue(TOPIC, "micro", number % QUEUES),
        body,
        properties,
        1_700_000_000_000 + number,
    )
    command.opaque = number
    return command.encode()


def pull_frame(offset: int) -> bytes:
    """Returns a pull request for queue 0 from `offset` on, with its subscription."""
    header = PullMessageRequestHeader(
        consumer_group="benchmark_consumer",
        topic=TOPIC,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=PULL_BATCH,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
    )
    command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
    command.serialize_type = SerializeType.ROCKETMQ
    return command.encode()


if __name__ == "__main__":
    sys.exit(main())
