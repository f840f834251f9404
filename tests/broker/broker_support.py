"""Small broker, NameServer and client for the broker tests.

`Peer` sends raw protocol requests. It does not use the client library, so the library cannot hide a fault.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from step_timer import StepTimer

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
from gantrymq.store.config import StoreConfig
from gantrymq.store.json_config import JsonConfigFile


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
        self.written: list[tuple[str, threading.Thread]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.error: StoreError | None = None
        self._write = write

    def write(self, file: JsonConfigFile) -> None:
        assert self.may_go_on.wait(20)
        self.written.append((file.path.name, threading.current_thread()))
        if self.error is not None:
            raise self.error
        self._write(file)


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
