"""Innocent client beside an attack, in its own process: measures its response times and counts its errors.

    prober.py BROKER_HOST:PORT PID NAMESERVER_HOST:PORT PID [CODE,CODE...]

Every 20 ms it sends a small message to its own topic, pulls it, and requests the route from the NameServer. The
codes are responses to a send that the attack makes inevitable, for example with a full disk. It prints `ready` after
the first round. When standard input closes, it prints the figures as one line of JSON.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.sys_flag import PULL_SUBSCRIPTION

TOPIC = "innocent"
INTERVAL_S = 0.02
SAMPLE_S = 0.01
#: Rounds after the attack, because its effects can last longer.
ROUNDS_AFTER = 10
ANSWER_TIMEOUT_S = 60.0
_MOST_ERRORS = 20
_PAGE_SIZE = resource.getpagesize()
_OWN = Path("/proc/self")


class Schedule(NamedTuple):
    """CPU times of a server in milliseconds.

    The loop ran for `run` and waited for a processor for `starved`. Its threads waited for `threads_starved`.
    """

    run: float
    starved: float
    threads_starved: float


@dataclass
class Figures:
    """Figures of a prober: times in milliseconds, memory in MiB.

    `slowest_ms` includes `starved_ms`, in which other programs used the processors. `memory` is the server's own
    memory, without pages of mapped files, which the kernel can reclaim at any time.
    """

    rounds: int = 0
    refused: int = 0
    slowest_ms: float = 0.0
    starved_ms: float = 0.0
    slowest_of: str = ""
    memory: float = 0.0
    errors: list[str] = field(default_factory=list)

    @property
    def stall_ms(self) -> float:
        """Returns the slowest response time without the time in which the server or its prober got no processor."""
        return self.slowest_ms - self.starved_ms


class _Server:
    """A connection to a server, for one request at a time."""

    def __init__(self, address: str, pid: int) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=ANSWER_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frames = FrameReader()
        self._statm = Path(f"/proc/{pid}/statm")
        self._tasks = Path(f"/proc/{pid}/task")
        self._pid = str(pid)

    def memory(self) -> float:
        resident, shared = map(int, self._statm.read_text().split()[1:3])
        return (resident - shared) * _PAGE_SIZE / (1 << 20)

    def schedule(self) -> Schedule:
        run, starved = _schedstat(self._tasks / self._pid)
        threads = sum(_schedstat(task)[1] for task in self._tasks.iterdir() if task.name != self._pid)
        return Schedule(run, starved + _schedstat(_OWN)[1], threads)


def _schedstat(task: Path) -> tuple[float, float]:
    """Returns the running and the waiting time in milliseconds.

    0 for an ended thread, or if the kernel does not count them.
    """
    try:
        run, starved = (task / "schedstat").read_text().split()[:2]
    except OSError:
        return 0.0, 0.0
    return int(run) / 1e6, int(starved) / 1e6


def starved_ms(took_ms: float, before: Schedule, after: Schedule) -> float:
    """Returns the time in which a server's loop and this process waited for a processor.

    It includes the waiting time of a server thread while the loop was blocked by this thread.
    """
    run, starved, threads = (max(now - then, 0.0) for now, then in zip(after, before, strict=True))
    return min(took_ms, starved + min(threads, max(took_ms - run - starved, 0.0)))


class Prober:
    """Sends its requests one after the other."""

    def __init__(self, broker: _Server, name_server: _Server, inevitable: frozenset[int]) -> None:
        self.figures = Figures()
        self._broker = broker
        self._name_server = name_server
        self._inevitable = inevitable
        self._opaque = 0
        self._sampled_at = 0.0

    def run_until_eof(self) -> None:
        self._round()
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], INTERVAL_S)[0]:
            self._round()
        for _ in range(ROUNDS_AFTER):
            time.sleep(INTERVAL_S)
            self._round()

    def _round(self) -> None:
        body = b"round %d" % self.figures.rounds
        answer = self._ask("send", self._broker, RequestCode.SEND_MESSAGE_V2, _send_header(), body)
        if answer.code == ResponseCode.SUCCESS:
            self._pull(answer.read_header(SendMessageResponseHeader).queue_offset, body)
        elif answer.code in self._inevitable:
            self.figures.refused += 1
        else:
            self.error(f"send: {answer.code} {answer.remark}")
        answer = self._ask(
            "route", self._name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicRequestHeader(topic=TOPIC)
        )
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
            self.error(f"route: {answer.code} {answer.remark}")
        self.figures.rounds += 1

    def _pull(self, offset: int, body: bytes) -> None:
        answer = self._ask("pull", self._broker, RequestCode.PULL_MESSAGE, _pull_header(offset))
        if answer.code != ResponseCode.SUCCESS:
            self.error(f"pull: {answer.code} {answer.remark}")
        elif [message.body for message in decode_messages(answer.body)] != [body]:
            self.error(f"pull: {body!r} came back as something else")

    def _ask(self, what: str, server: _Server, code: int, header: Header, body: bytes = b"") -> RemotingCommand:
        self._opaque += 1
        request = RemotingCommand.request(code, header, body)
        request.serialize_type = SerializeType.ROCKETMQ
        request.opaque = self._opaque
        frame = request.encode()
        before, began = server.schedule(), time.monotonic()
        server.socket.sendall(frame)
        answer = self._answer(server, began + ANSWER_TIMEOUT_S)
        took_ms = 1000 * (time.monotonic() - began)
        starved = starved_ms(took_ms, before, server.schedule())
        figures = self.figures
        if took_ms - starved > figures.stall_ms:
            figures.slowest_ms, figures.starved_ms, figures.slowest_of = took_ms, starved, what
        return answer

    def _answer(self, server: _Server, deadline: float) -> RemotingCommand:
        while time.monotonic() < deadline:
            self._sample()
            if not select.select([server.socket], [], [], SAMPLE_S)[0]:
                continue
            data = server.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the server closed the connection")
            for command in server.frames.feed(data):
                if command.opaque == self._opaque:
                    return command
        raise TimeoutError(f"no answer in {ANSWER_TIMEOUT_S} s")

    def _sample(self) -> None:
        now = time.monotonic()
        if now - self._sampled_at >= SAMPLE_S:
            self._sampled_at = now
            self.figures.memory = max(self.figures.memory, self._broker.memory(), self._name_server.memory())

    def error(self, text: str) -> None:
        if len(self.figures.errors) < _MOST_ERRORS:
            self.figures.errors.append(text)


def _send_header() -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2(
        producer_group="innocents",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=time.time_ns() // 1_000_000,
        flag=0,
        reconsume_times=0,
    )


def _pull_header(offset: int) -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        consumer_group="innocent-readers",
        topic=TOPIC,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=1,
        sys_flag=PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )


def main(broker: str, broker_pid: str, name_server: str, name_server_pid: str, inevitable: str = "") -> None:
    codes = frozenset(int(code) for code in inevitable.split(",") if code)
    prober = Prober(_Server(broker, int(broker_pid)), _Server(name_server, int(name_server_pid)), codes)
    try:
        prober.run_until_eof()
    except OSError as e:
        prober.error(f"{type(e).__name__}: {e}")
        print("ready", flush=True)
    print(json.dumps(asdict(prober.figures)))


if __name__ == "__main__":
    main(*sys.argv[1:])
