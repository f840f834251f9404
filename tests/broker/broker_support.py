"""Small broker, NameServer and client for the broker tests.

`Peer` sends raw protocol requests. It does not use the client library, so the library cannot hide a fault.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from constants import change_constant
from step_timer import StepTimer
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.background.report import JobReport
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.errors import StoreError
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.sys_flag import PULL_SUBSCRIPTION, PULL_SUSPEND
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.server import RemotingServer
from gantrymq.store.config import StoreConfig
from gantrymq.store.json_config import JsonConfigFile

T = TypeVar("T")


class Peer:
    """Sends requests to one broker over one connection."""

    def __init__(self, connection: Connection, serialize_type: SerializeType = SerializeType.JSON) -> None:
        self.connection = connection
        self.serialize_type = serialize_type

    async def ask(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        fields: dict[str, str] | None = None,
        timeout_ms: int = 20_000,
    ) -> RemotingCommand:
        request = RemotingCommand.request(code, header, body, fields=fields)
        request.serialize_type = self.serialize_type
        return await self.connection.invoke(request, timeout_ms)

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        queue_id: int = 0,
        properties: dict[str, str] | None = None,
        code: int = RequestCode.SEND_MESSAGE_V2,
        fields: dict[str, str] | None = None,
        timeout_ms: int = 20_000,
        **changed: object,
    ) -> RemotingCommand:
        header = SendMessageRequestHeaderV2(
            producer_group="producers",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=0,
            properties=encode_properties(properties or {}).decode(),
            reconsume_times=0,
            unit_mode=False,
            max_reconsume_times=0,
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name="broker-a",
        )
        for name, value in changed.items():
            setattr(header, name, value)
        return await self.ask(code, header, body, fields=fields, timeout_ms=timeout_ms)

    async def pull(
        self,
        topic: str,
        offset: int = 0,
        *,
        queue_id: int = 0,
        suspend_ms: int = 0,
        subscription: str = "*",
        group: str = "consumers",
        **changed: object,
    ) -> RemotingCommand:
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=suspend_ms,
            sub_version=0,
            subscription=subscription,
            expression_type="TAG",
        )
        for name, value in changed.items():
            setattr(header, name, value)
        return await self.ask(RequestCode.PULL_MESSAGE, header, timeout_ms=suspend_ms + 20_000)


def config(directory: Path, *, message_delay_level: str = "1s 5s", **changed: object) -> BrokerConfig:
    """Returns the configuration of a small broker that stores its files in `directory`."""
    store = StoreConfig(
        store_path_root_dir=directory,
        mapped_file_size_commit_log=4 * 1024 * 1024,
        mapped_file_size_consume_queue=20 * 1000,
        message_delay_level=message_delay_level,
    )
    return BrokerConfig(
        broker_name="broker-a",
        bind_address="127.0.0.1",
        listen_port=0,
        store=store,
        **changed,  # type: ignore[arg-type]
    )


class Disk:
    """Replaces the write of configuration files, and records each file and its thread.

    A write blocks while `may_go_on` is not set. If `error` is set, the write raises it.
    """

    def __init__(self, write: Callable[[JsonConfigFile], None]) -> None:
        #: The files whose writes have begun.
        self.begun: list[str] = []
        #: Called in the writing thread, with the name of the file.
        self.before_write: Callable[[str], None] = lambda file: None
        self.written: list[tuple[str, threading.Thread]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.error: StoreError | None = None
        self._write = write

    def write(self, file: JsonConfigFile) -> None:
        self.begun.append(file.path.name)
        self.before_write(file.path.name)
        assert self.may_go_on.wait(20)
        self.written.append((file.path.name, threading.current_thread()))
        if self.error is not None:
            raise self.error
        self._write(file)


def job(broker: Broker, name: str) -> JobReport:
    """Returns the report of a background job."""
    return next(report for report in broker.jobs if report.name == name)


def server_of(broker: Broker) -> RemotingServer:
    """Returns the server that accepts the connections of a broker."""
    return broker._server


def set_request_slice(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Sets the longest time slice of long requests. With 0, each event-loop iteration does one step."""
    change_constant(patch, "long_requests.SLICE_S", seconds)


def set_preallocation_wait(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Sets the longest time for which a request waits until its file is preallocated."""
    change_constant(patch, "preallocation_waits.WAIT_S", seconds)


def objects_in_memory(kind: type[T], before: Sequence[T] = ()) -> list[T]:
    """Returns the objects of a class in this process, without garbage and those of `before`.

    Other tests of the process can have left objects, so a test first takes those that are there.
    """
    gc.collect()
    known = set(map(id, before))
    return [each for each in gc.get_objects() if type(each) is kind and id(each) not in known]


def requests_in_memory(before: Sequence[RemotingCommand] = ()) -> list[RemotingCommand]:
    """Returns the received requests in this process that still have their fields, without those of `before`."""
    return [each for each in objects_in_memory(RemotingCommand, before) if each.raw_ext and not each.is_response]


async def until_freed(*connections: weakref.ref[Connection]) -> None:
    """Waits until nothing in this process refers to these connections."""

    def are_freed() -> bool:
        gc.collect()
        return not any(connection() for connection in connections)

    await until(are_freed)


def weak(connections: Iterable[Connection]) -> list[weakref.ref[Connection]]:
    return [weakref.ref(connection) for connection in connections]


async def run_again(jobs: Jobs, name: str) -> None:
    """Runs a job once from its start to its end. Raises AssertionError if it fails."""
    repeating = jobs.find(name)
    report = repeating.report
    # During a run, `wake` starts another one after it.
    end = report.runs + 1 + repeating.is_running
    repeating.wake()
    await until(lambda: report.runs >= end)
    assert report.failing_since is None, report.last_error


async def longest_step(work: Callable[[], bool]) -> float:
    """Returns the longest event-loop iteration, in seconds, until `work` returns true.

    `StepTimer` measures the iterations. Garbage collection is kept out of the measurement.
    """
    gc.collect()
    gc.freeze()
    timer = StepTimer()
    try:
        async with asyncio.timeout(60):
            while not work():
                with timer.step():
                    await asyncio.sleep(0)
    finally:
        gc.unfreeze()
    return timer.longest


def name_server(directory: Path, **options: Any) -> NameServer:
    """Returns a NameServer on a free port that is not started.

    `options` are fields of its configuration.
    """
    root = directory / "namesrv"
    return NameServer(
        NamesrvConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            kv_config_path=root / "kvConfig.json",
            config_store_path=root / "namesrv.properties",
            **options,
        )
    )
