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
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gantrymq.background.repeating import Repeating
from gantrymq.background.thread import SupervisedThread
from gantrymq.cli.produce_input import MessageMaker, Splitter
from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.client.producing.outgoing import may_be_batched
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.errors import BodyError, GantryError, IllegalMessage
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


class Place(NamedTuple):
    """Where a message came from: a file's name and a line; no line where the file is one message."""

    name: str
    line: int | None


@dataclass(slots=True)
class Tally:
    """What became of the messages; `unsafe` are those acknowledged that weren't flushed or replicated in time."""

    read: int = 0
    acknowledged: int = 0
    unsafe: int = 0
    #: The first.
    error: BaseException | None = None
    #: Parts of the input that are no messages; the first, by file and line, and why.
    bad: int = 0
    first_bad: str = ""
    #: The signal that ended the reading.
    signal: int | None = None

    def left_out(self, place: Place, error: BaseException) -> None:
        """Counts a part that is no message."""
        self.bad += 1
        if not self.first_bad:
            self.first_bad = f"{place.name}{'' if place.line is None else f', line {place.line}'}: {error}"

    def done(self, future: asyncio.Future[SendResult], place: Place | None = None) -> None:
        """Counts the end of a send, of what came from `place`."""
        if future.cancelled():
            return
        error = future.exception()
        if place is not None and isinstance(error, IllegalMessage):
            self.read -= 1
            self.left_out(place, error)
            return
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
    skip_bad: bool,
    quiet: bool,
) -> int:
    """Sends what the files hold, or standard input; the exit code. What went wrong is on standard error.

    It ends at the first part that is no message, or leaves it out (`skip_bad`); what was read before it is sent.
    """
    from gantrymq.background.event_loop import new_event_loop

    files = files or [STDIN]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(producer, maker, files, delimiter, ordered, skip_bad, quiet))


async def _run(
    producer: Producer,
    maker: MessageMaker,
    files: Sequence[Path],
    delimiter: bytes | None,
    ordered: bool,
    skip_bad: bool,
    quiet: bool,
) -> int:
    tally = Tally()
    began = time.perf_counter()
    interrupted = asyncio.Event()
    console = Console(stderr=True, highlight=False)
    # Who types would see the progress between the letters.
    live = console.is_terminal and not quiet and not (STDIN in files and sys.stdin.isatty())
    with _watching_for_interrupts(interrupted, tally):
        try:
            async with _progress(tally, console if live else None), producer:
                await _deliver(producer, maker, _chunks(files, interrupted), delimiter, ordered, skip_bad, tally)
        except (GantryError, OSError) as e:
            tally.error = tally.error or e
        except asyncio.CancelledError:
            # The second Ctrl-C: what is under way is given up.
            pass
    if tally.bad:
        many = f"left out {tally.bad:,} bad, the first is " if skip_bad else ""
        print(f"gantry: {many}{tally.first_bad}", file=sys.stderr)
    if tally.error is not None:
        print(f"gantry: {tally.error}", file=sys.stderr)
    if live or tally.error is not None or interrupted.is_set() or tally.unsafe or tally.bad:
        print(_summary(tally, time.perf_counter() - began), file=sys.stderr)
    if tally.error is not None or (tally.bad and not skip_bad):
        return 1
    return 0 if tally.signal is None else 128 + tally.signal


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
    skip_bad: bool,
    tally: Tally,
) -> None:
    """Sends until the input ends, something fails, or a part is no message that isn't to be left out."""
    send = _Send(producer, ordered, tally)
    try:
        await _read_and_send(send, maker, chunks, delimiter, skip_bad, tally)
    except OSError as e:
        tally.error = tally.error or e
    await send.finish()


async def _read_and_send(
    send: _Send,
    maker: MessageMaker,
    chunks: AsyncIterator[tuple[Path, bytes]],
    delimiter: bytes | None,
    skip_bad: bool,
    tally: Tally,
) -> None:
    splitter, number = Splitter(delimiter), 0
    async for path, chunk in chunks:
        name = "standard input" if path == STDIN else str(path)
        for part in splitter.feed(chunk) if chunk else splitter.finish():
            number += 1
            # Brokers take no empty body.
            if part == b"":
                continue
            place = Place(name, None if delimiter is None else number)
            try:
                await send(maker.message(part), place)
            except (BodyError, IllegalMessage) as e:
                tally.left_out(place, e)
            if tally.bad and not skip_bad:
                return
        if tally.error is not None:
            return
        if not chunk:
            splitter, number = Splitter(delimiter), 0


class _Send:
    """Puts messages into batches, and sends those that can't go in one alone."""

    def __init__(self, producer: Producer, ordered: bool, tally: Tally) -> None:
        self._producer = producer
        self._ordered = ordered
        self._tally = tally
        self._singles: set[asyncio.Future[SendResult]] = set()
        self._queues: Sequence[MessageQueue] = ()

    async def __call__(self, message: Message, place: Place) -> None:
        """Waits only while too much is under way. Raises IllegalMessage, or counts it later, as of `place`."""
        queue = None
        if self._ordered and message.keys:
            self._queues = self._queues or await self._producer.queues(message.topic)
            queue = select_by_hash(self._queues, message, message.properties[KEYS])
        if may_be_batched(message):
            future = await self._producer.enqueue(message, TIMEOUT_MS, queue)
            future.add_done_callback(self._tally.done)
        else:
            if len(self._singles) >= MAX_SINGLE_SENDS:
                await asyncio.wait(self._singles, return_when=asyncio.FIRST_COMPLETED)
            future = asyncio.ensure_future(self._producer.send(message, TIMEOUT_MS, queue))
            self._singles.add(future)
            future.add_done_callback(self._singles.discard)
            future.add_done_callback(lambda future: self._tally.done(future, place))
        self._tally.read += 1

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
def _watching_for_interrupts(interrupted: asyncio.Event, tally: Tally) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets the event, the second cancels this task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def handle(number: int) -> None:
        if interrupted.is_set():
            task.cancel()
        tally.signal = tally.signal or number
        interrupted.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, handle, number)
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
