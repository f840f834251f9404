"""Implements `gantry produce`: reads input, sends it in batches, counts acknowledgements and shows the progress."""

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
from gantrymq.client.producing.message_encoder import may_be_batched
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import queue_by_hash
from gantrymq.errors import BodyError, GantryError, IllegalMessage
from gantrymq.logs import terminal_text
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.protocol.properties import KEYS

# The client's log lines are suppressed, because its errors have the same information.
logging.getLogger("gantrymq").addHandler(logging.NullHandler())

#: The time for which a batch waits for more messages, in seconds, and the size at which a batch is sent at once.
LINGER_S = 0.005
BATCH_SIZE = 64 * 1024
#: The limit of the bytes in flight. With 8 MiB, garbage collection would take a quarter of the time.
BUFFER_BYTES = 1024 * 1024
#: The timeout for all attempts of a batch, in seconds.
TIMEOUT_S = 10.0
#: The limit of concurrent sends for messages that can't be in a batch.
MAX_SINGLE_SENDS = 256
STDIN = Path("-")

_CHUNK = 256 * 1024
_CHUNKS_AHEAD = 2
_DRAW_INTERVAL_S = 0.25


class Place(NamedTuple):
    """The position of a message in the input: the file and the line. `line` is None if a file is one message."""

    name: str
    line: int | None


@dataclass(slots=True)
class Tally:
    """The counts of a run. `unsafe` counts acknowledged messages that weren't flushed or replicated in time."""

    read: int = 0
    acknowledged: int = 0
    unsafe: int = 0
    #: The first error.
    error: BaseException | None = None
    #: The number of invalid parts of the input, and the position of the first invalid part, with the reason.
    bad: int = 0
    first_bad: str = ""
    #: The signal that ended the reading; None without a signal.
    signal: int | None = None

    def started(self) -> None:
        """Counts a message of the input whose send has started."""
        self.read += 1

    def left_out(self, place: Place, error: BaseException) -> None:
        """Counts an invalid part of the input."""
        self.bad += 1
        if not self.first_bad:
            self.first_bad = f"{place.name}{'' if place.line is None else f', line {place.line}'}: {error}"

    def done(self, future: asyncio.Future[SendResult], place: Place | None = None) -> None:
        """Counts the result of a send. With a `place`, an IllegalMessage counts as an invalid part of the input."""
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
    """Sends the messages in the files, or in standard input. Returns the exit code, and prints errors.

    If a part of the input is invalid, skips the part (`skip_bad`) or ends. Always sends the messages before it.

    Args:
        producer: The producer.
        maker: Converts parts of the input to messages.
        files: The input. Default: standard input.
        delimiter: The end of a message; None if each file is one message.
        ordered: If true, messages with the same key go to the same queue.
        skip_bad: If true, invalid parts are skipped.
        quiet: If true, no progress is shown.
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
    # No progress if the user types the input, because the progress would appear within the typed text.
    live = console.is_terminal and not quiet and not (STDIN in files and sys.stdin.isatty())
    with _watching_for_interrupts(interrupted, tally):
        try:
            async with _progress(tally, console if live else None), producer:
                await _deliver(producer, maker, _chunks(files, interrupted), delimiter, ordered, skip_bad, tally)
        except (GantryError, OSError) as e:
            tally.error = tally.error or e
        except asyncio.CancelledError:
            # On the second Ctrl-C, pending sends are cancelled.
            pass
    if tally.bad:
        many = f"left out {tally.bad:,} bad, the first is " if skip_bad else ""
        print(f"gantry: {many}{terminal_text(tally.first_bad)}", file=sys.stderr)
    if tally.error is not None:
        print(f"gantry: {terminal_text(str(tally.error))}", file=sys.stderr)
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
    """Sends until the input ends, a send fails, or a part is invalid and must not be skipped."""
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
            # Skipped, because brokers reject an empty body.
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
    """Sends messages, in batches where possible."""

    def __init__(self, producer: Producer, ordered: bool, tally: Tally) -> None:
        self._producer = producer
        self._ordered = ordered
        self._tally = tally
        self._singles: set[asyncio.Future[SendResult]] = set()
        self._queues: Sequence[MessageQueue] = ()

    async def __call__(self, message: Message, place: Place) -> None:
        """Starts to send a message. Waits only while too many bytes or messages are in flight.

        Raises IllegalMessage. If the client refuses the message later, `place` identifies it in the error.
        """
        queue = None
        if self._ordered and message.keys:
            self._queues = self._queues or await self._producer.queues(message.topic)
            queue = queue_by_hash(message.properties[KEYS], self._queues)
        if may_be_batched(message):
            future = await self._producer.enqueue(message, timeout=TIMEOUT_S, queue=queue)
            future.add_done_callback(self._tally.done)
        else:
            if len(self._singles) >= MAX_SINGLE_SENDS:
                await asyncio.wait(self._singles, return_when=asyncio.FIRST_COMPLETED)
            future = asyncio.ensure_future(self._producer.send(message, timeout=TIMEOUT_S, queue=queue))
            self._singles.add(future)
            future.add_done_callback(self._singles.discard)
            future.add_done_callback(lambda future: self._tally.done(future, place))
        self._tally.started()

    async def finish(self) -> None:
        """Waits for messages that are sent one by one. The close of the producer waits for the batches."""
        if self._singles:
            await asyncio.wait(self._singles)


# -- reading ----------------------------------------------------------------------------------------------------------


async def _chunks(files: Sequence[Path], interrupted: asyncio.Event) -> AsyncIterator[tuple[Path, bytes]]:
    """Yields the chunks of the files, with an empty chunk at the end of each file. Raises OSError.

    Ends after the last file, or after an interrupt.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[tuple[Path, bytes] | BaseException | None] = asyncio.Queue(_CHUNKS_AHEAD)

    def put(item: tuple[Path, bytes] | BaseException | None) -> None:
        putting = chunks.put(item)
        try:
            asyncio.run_coroutine_threadsafe(putting, loop).result()
        finally:
            # If the loop is closed, nothing else awaits it, and Python would print a warning.
            putting.close()

    def read() -> None:
        # RuntimeError: the event loop is closed, so further input is not needed.
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

    # A daemon thread, because a read of a terminal or a pipe can't be interrupted.
    SupervisedThread("gantry-produce-input", read, put).start()
    stop, after_stop = asyncio.ensure_future(interrupted.wait()), 0
    try:
        while True:
            get = asyncio.ensure_future(chunks.get())
            await asyncio.wait({get, stop}, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                # After an interrupt, the chunks that were already read are sent, but no more input is read.
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
    """Handles SIGINT and SIGTERM in its block: the first signal sets the event, the second cancels this task."""
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
    """Shows the counts until the end of its block."""
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
