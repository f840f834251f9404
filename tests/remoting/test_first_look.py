"""The first look of a server: a callback that gets each read before it is decoded.

The tests cover its input, and that its time counts like all other work.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from remoting_support import ECHO, echo, frame
from transports import Keeping

from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.remoting import connection as connection_module
from gantrymq.remoting import flow_control, time_slices
from gantrymq.remoting.connection import Connection, FirstLook, Reply, RpcHook
from gantrymq.remoting.connection_limits import ConnectionLimits
from gantrymq.remoting.responses import encode_reply
from gantrymq.remoting.time_slices import CROWDED_SLICE_S, ROUND_S, TimeSlices

#: `Look` handles frames with this code.
PLAIN = 7
LOOK_S = 0.0015


class Written(Keeping):
    def answers(self) -> list[int]:
        """Returns the opaque numbers of the responses, in order."""
        return [command.opaque for command in FrameReader().feed(self.data)]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (connection_module, flow_control):
        monkeypatch.setattr(module, "monotonic", clock)
    monkeypatch.setattr(time_slices, "thread_time", clock)
    return clock


class Look:
    """Answers the PLAIN frames at the start of a read.

    Each call takes `LOOK_S` of the simulated time.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.seen: list[bytes] = []
        self.looked: list[Connection] = []
        self._clock = clock

    def __call__(self, connection: Connection, data: bytes) -> tuple[int, bytes]:
        self.looked.append(connection)
        self.seen.append(data)
        if self._clock is not None:
            self._clock.now += LOOK_S
        dealt, answers = 0, b""
        for command in whole_frames(data):
            if command.code != PLAIN:
                break
            dealt += len(command.encode())
            answers += encode_reply(command, RemotingCommand.response())
        return dealt, answers


def whole_frames(data: bytes) -> Iterator[RemotingCommand]:
    yield from FrameReader().feed(data)


def connected(look: FirstLook, *, slices: TimeSlices | None = None, hooks: list[RpcHook] | None = None) -> Connection:
    limits = ConnectionLimits(slices if slices is not None else TimeSlices())
    connection = Connection({ECHO: echo}, is_server=True, limits=limits, first_look=look, hooks=hooks or [])
    connection.attributes[Written] = transport = Written()
    connection.connection_made(transport)
    return connection


def written_by(connection: Connection) -> Written:
    transport: Written = connection.attributes[Written]
    return transport


async def test_it_is_given_what_begins_with_a_frame(clock: Clock) -> None:
    """Wherever a stream is split into reads, each frame is answered once, and in order."""
    codes = [PLAIN, PLAIN, ECHO, PLAIN, ECHO]
    stream = b"".join(frame(code, opaque=number) for number, code in enumerate(codes))
    begins = {0, *(sum(len(frame(code, opaque=n)) for n, code in enumerate(codes[:end])) for end in range(1, 5))}
    for first in range(1, len(stream)):
        for second in {first, (first + len(stream)) // 2, len(stream) - 1}:
            look = Look()
            connection = connected(look)
            for piece in (stream[:first], stream[first:second], stream[second:]):
                if piece:
                    connection.data_received(piece)
            assert written_by(connection).answers() == [0, 1, 2, 3, 4]
            assert all(any(stream[at:].startswith(seen) for at in begins) for seen in look.seen)
            connection.connection_lost(None)


@pytest.mark.parametrize(("codes", "look_s"), [([PLAIN, ECHO], 0.0), ([ECHO], LOOK_S)])
async def test_a_command_begins_after_the_requests_before_it(clock: Clock, codes: list[int], look_s: float) -> None:
    took: list[float] = []

    def timed(connection: Connection, request: RemotingCommand) -> Reply:
        took.append(clock() - connection.command_began)
        return echo(connection, request)

    limits = ConnectionLimits(TimeSlices())
    connection = Connection({ECHO: timed}, is_server=True, limits=limits, first_look=Look(clock))
    connection.connection_made(Written())
    connection.data_received(b"".join(frame(code, opaque=number) for number, code in enumerate(codes)))
    assert took == pytest.approx([look_s])
    connection.connection_lost(None)


async def test_its_answers_go_out_with_those_of_the_same_read(clock: Clock) -> None:
    connection = connected(Look())
    connection.data_received(frame(PLAIN, opaque=1) + frame(ECHO, opaque=2))
    written = written_by(connection)
    assert (written.answers(), written.calls) == ([1, 2], 1)
    connection.connection_lost(None)


async def test_hooks_see_every_request(clock: Clock) -> None:
    class Hook:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def before_request(self, address: str, request: RemotingCommand) -> None:
            self.seen.append(request.opaque)

        def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
            pass

    hook, look = Hook(), Look()
    connection = connected(look, hooks=[hook])
    connection.data_received(frame(PLAIN, opaque=1) + frame(ECHO, opaque=2))
    assert (hook.seen, look.seen) == ([1, 2], [])
    connection.connection_lost(None)


async def test_who_floods_has_turns_like_others(clock: Clock) -> None:
    """Many connections whose reads only the first look handles are limited like others.

    They take at most the time budget of one event-loop iteration, and one look more. A cheap connection is served in
    the same iteration, and the remaining ones in later iterations.
    """
    slices = TimeSlices()
    look = Look(clock)
    cheap = connected(look, slices=slices)
    crowd = [connected(look, slices=slices) for _ in range(40)]
    clock.now += 0.5
    cheap.data_received(frame(PLAIN, opaque=1))
    slices.new_round()
    clock.now += 0.5
    for number, connection in enumerate(crowd):
        connection.data_received(b"".join(frame(PLAIN, opaque=n) for n in (number, number + 100)))
    served = [connection for connection in crowd if written_by(connection).data]
    assert ROUND_S < len(served) * LOOK_S < ROUND_S + 2 * LOOK_S
    assert LOOK_S > CROWDED_SLICE_S

    cheap.data_received(frame(PLAIN, opaque=2))
    assert written_by(cheap).answers() == [1, 2]

    rounds = 0
    while any(connection.is_behind for connection in crowd):
        slices.new_round()
        rounds += 1
    assert rounds > 1
    assert [written_by(one).answers() for one in crowd] == [[number, number + 100] for number in range(40)]
    assert len(look.looked) == 40 + 2
    for connection in (cheap, *crowd):
        connection.connection_lost(None)
