"""A server's first look at what it reads: what it is given, and that it has turns like everything else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from remoting_support import ECHO, echo, frame
from transports import Keeping

from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.remoting import connection as connection_module
from gantrymq.remoting import flow_control
from gantrymq.remoting.answers import encode_reply
from gantrymq.remoting.connection import Connection, FirstLook, RpcHook
from gantrymq.remoting.turns import CROWDED_TURN_S, ROUND_S, Turns

#: Frames with this code are dealt with by `Look`.
PLAIN = 7
LOOK_S = 0.0015


class Written(Keeping):
    def answers(self) -> list[int]:
        """Opaque numbers, in their order."""
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
    monkeypatch.setattr(connection_module, "thread_time", clock)
    return clock


class Look:
    """Answers the PLAIN frames that a read begins with; each call takes LOOK_S of the clock."""

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


def connected(look: FirstLook, *, turns: Turns | None = None, hooks: list[RpcHook] | None = None) -> Connection:
    connection = Connection({ECHO: echo}, is_server=True, turns=turns, first_look=look, hooks=hooks or [])
    connection.connection_made(Written())
    return connection


def written_by(connection: Connection) -> Written:
    assert isinstance(connection._transport, Written)
    return connection._transport


async def test_it_is_given_what_begins_with_a_frame(clock: Clock) -> None:
    """However a stream is cut into reads, all is answered once, and in order."""
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
    """A crowd whose reads are dealt with by the first look alone takes a round's time at most, and one look more. Who
    asks for little has its turn in the same round; the others have theirs in rounds that follow."""
    turns = Turns()
    look = Look(clock)
    cheap = connected(look, turns=turns)
    crowd = [connected(look, turns=turns) for _ in range(40)]
    clock.now += 0.5
    cheap.data_received(frame(PLAIN, opaque=1))
    turns._new_round()
    clock.now += 0.5
    for number, connection in enumerate(crowd):
        connection.data_received(b"".join(frame(PLAIN, opaque=n) for n in (number, number + 100)))
    served = [connection for connection in crowd if written_by(connection).data]
    assert ROUND_S < len(served) * LOOK_S < ROUND_S + 2 * LOOK_S
    assert LOOK_S > CROWDED_TURN_S

    cheap.data_received(frame(PLAIN, opaque=2))
    assert written_by(cheap).answers() == [1, 2]

    rounds = 0
    while any(connection.is_behind for connection in crowd):
        turns._new_round()
        rounds += 1
    assert rounds > 1
    assert [written_by(one).answers() for one in crowd] == [[number, number + 100] for number in range(40)]
    assert len(look.looked) == 40 + 2
    for connection in (cheap, *crowd):
        connection.connection_lost(None)
