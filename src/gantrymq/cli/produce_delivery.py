"""`gantry produce`: reads, sends in batches, counts what brokers acknowledge, shows how far it is."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gantrymq.background.repeating import Repeating
from gantrymq.background.thread import SupervisedThread
from gantrymq.cli.exit_codes import INTERRUPTED
from gantrymq.cli.produce_input import MessageMaker, Splitter
from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.client.producing.outgoing import may_be_batched
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.errors import BodyError, ClientError, GantryError, IllegalMessage
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.protocol.properties import KEYS

# What the client logs on the way to an error is said by the error.
logging.getLogger("gantrymq").addHandler(logging.NullHandler())

#: A batch waits so long for more messages, and is sent at once when it has so many bytes.
LINGER_MS = 5.0
BATCH_SIZE = 64 * 1024
#: Bytes that are under way before the reading waits. With 8 MiB a quarter of the time went into collecting garbage.
BUFFER_BYTES = 1024 * 1024
#: For all tries of a batch.
TIMEOUT_MS = 10_000
#: Sends of messages that can't go in a batch.
MAX_SINGLE_SENDS = 256
STDIN = Path("-")

_CHUNK = 256 * 1024
_CHUNKS_AHEAD = 2
_DRAW_INTERVAL_S = 0.25


@dataclass(slots=True)
class Tally:
    """What became of the messages; `unsafe` are those acknowledged that weren't flushed or replicated in time."""

    read: int = 0
    acknowledged: int = 0
    unsafe: int = 0
    #: The first.
    error: BaseException | None = None

    def done(self, future: asyncio.Future[SendResult]) -> None:
        """Counts the end of a send."""
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self.error = self.error or error
            return
        self.acknowledged += 1
        if future.result().status is not SendStatus.SEND_OK:
            self.unsafe += 1


def run_produce(
    producer: Producer,
    maker: MessageMaker,
    files: Sequence[Path],
    delimiter: bytes | None,
    *,
    ordered: bool,
    quiet: bool,
) -> int:
    """Sends what the files hold, or standard input; the exit code. What went wrong is on standard error."""
    import uvloop

    files = files or [STDIN]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(producer, maker, files, delimiter, ordered, quiet))


async def _run(
    producer: Producer, maker: MessageMaker, files: Sequence[Path], delimiter: bytes | None, ordered: bool, quiet: bool
) -> int:
    tally = Tally()
    began = time.perf_counter()
    interrupted = asyncio.Event()
    console = Console(stderr=True, highlight=False)
    # Who types would see the progress between the letters.
    live = console.is_terminal and not quiet and not (STDIN in files and sys.stdin.isatty())
    with _watching_for_interrupts(interrupted):
        try:
            async with _progress(tally, console if live else None), producer:
                await _deliver(producer, maker, _chunks(files, interrupted), delimiter, ordered, tally)
        except (GantryError, OSError) as e:
            tally.error = tally.error or e
        except asyncio.CancelledError:
            # The second Ctrl-C: what is under way is given up.
            pass
    if tally.error is not None:
        print(f"gantry: {tally.error}", file=sys.stderr)
    if live or tally.error is not None or interrupted.is_set() or tally.unsafe:
        print(_summary(tally, time.perf_counter() - began), file=sys.stderr)
    if tally.error is not None:
        return 1
    return INTERRUPTED if interrupted.is_set() else 0


def _summary(tally: Tally, seconds: float) -> str:
    rate = tally.acknowledged / seconds
    text = f"{tally.acknowledged:,} of {tally.read:,} messages acknowledged in {seconds:.1f} s ({rate:,.0f}/s)"
    if tally.unsafe:
        text += f", {tally.unsafe:,} of them not flushed or replicated in time"
    return text


# -- sending ----------------------------------------------------------------------------------------------------------


async def _deliver(
    producer: Producer,
    maker: MessageMaker,
    chunks: AsyncIterator[tuple[Path, bytes]],
    delimiter: bytes | None,
    ordered: bool,
    tally: Tally,
) -> None:
    """Sends until the input ends or something fails. Raises ClientError for what can't be a message."""
    send = _Send(producer, ordered, tally)
    splitter, number = Splitter(delimiter), 0
    async for path, chunk in chunks:
        try:
            for part in splitter.feed(chunk) if chunk else splitter.finish():
                number += 1
                # Brokers take no empty body.
                if part:
                    await send(maker.message(part))
        except (BodyError, IllegalMessage) as e:
            raise ClientError(f"{'standard input' if path == STDIN else path}, line {number}: {e}") from e
        if tally.error is not None:
            break
        if not chunk:
            splitter, number = Splitter(delimiter), 0
    await send.finish()


class _Send:
    """Puts messages into batches, and sends those that can't go in one alone."""

    def __init__(self, producer: Producer, ordered: bool, tally: Tally) -> None:
        self._producer = producer
        self._ordered = ordered
        self._tally = tally
        self._singles: set[asyncio.Future[SendResult]] = set()
        self._queues: Sequence[MessageQueue] = ()

    async def __call__(self, message: Message) -> None:
        """Waits only while too much is under way."""
        queue = None
        if self._ordered and message.keys:
            self._queues = self._queues or await self._producer.queues(message.topic)
            queue = select_by_hash(self._queues, message, message.properties[KEYS])
        self._tally.read += 1
        if may_be_batched(message):
            future = await self._producer.enqueue(message, TIMEOUT_MS, queue)
        else:
            if len(self._singles) >= MAX_SINGLE_SENDS:
                await asyncio.wait(self._singles, return_when=asyncio.FIRST_COMPLETED)
            future = asyncio.ensure_future(self._producer.send(message, TIMEOUT_MS, queue))
            self._singles.add(future)
            future.add_done_callback(self._singles.discard)
        future.add_done_callback(self._tally.done)

    async def finish(self) -> None:
        """Waits for those that are sent alone; the producer's close does for the others."""
        if self._singles:
            await asyncio.wait(self._singles)


# -- reading ----------------------------------------------------------------------------------------------------------


async def _chunks(files: Sequence[Path], interrupted: asyncio.Event) -> AsyncIterator[tuple[Path, bytes]]:
    """What is in the files, each ended by an empty chunk, until the end or an interrupt. Raises OSError."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[tuple[Path, bytes] | BaseException | None] = asyncio.Queue(_CHUNKS_AHEAD)

    def put(item: tuple[Path, bytes] | BaseException | None) -> None:
        asyncio.run_coroutine_threadsafe(chunks.put(item), loop).result()

    def read() -> None:
        # RuntimeError: the loop is closed, nobody wants what has come.
        with suppress(RuntimeError):
            try:
                for path in files:
                    with open(0 if path == STDIN else path, "rb", buffering=0, closefd=path != STDIN) as file:
                        while chunk := file.read(_CHUNK):
                            put((path, chunk))
                    put((path, b""))
                put(None)
            except OSError as e:
                put(e)

    # A daemon: nothing wakes a thread that waits for a terminal or a pipe.
    SupervisedThread("gantry-produce-input", read, put).start()
    stop, after_stop = asyncio.ensure_future(interrupted.wait()), 0
    try:
        while True:
            get = asyncio.ensure_future(chunks.get())
            await asyncio.wait({get, stop}, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                # What has been read is still sent, but no endless input to its end.
                after_stop += 1
            if not get.done() or after_stop > _CHUNKS_AHEAD + 1:
                get.cancel()
                return
            item = get.result()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.cancel()


@contextmanager
def _watching_for_interrupts(interrupted: asyncio.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets the event, the second cancels this task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def handle() -> None:
        if interrupted.is_set():
            task.cancel()
        interrupted.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _progress(tally: Tally, console: Console | None) -> AsyncIterator[None]:
    """Shows the tally, until the end of the block."""
    if console is None:
        yield
        return
    began = time.perf_counter()
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw() -> None:
            live.update(Text(_summary(tally, time.perf_counter() - began)), refresh=True)

        drawing = Repeating("the display of the progress", draw, _DRAW_INTERVAL_S)
        drawing.start()
        try:
            yield
        finally:
            drawing.cancel()
