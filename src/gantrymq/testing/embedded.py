"""EmbeddedCluster: a NameServer and brokers in an event loop, in a thread of the calling process."""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from gantrymq.background.event_loop import new_event_loop
from gantrymq.background.thread import SupervisedThread
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, BrokerRole
from gantrymq.errors import ConfigError, GantryError, ThreadDied
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import StoreConfig
from gantrymq.testing.processes import HOST, IN_SYNC_REPLICAS, broker_name, replica_name

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
#: Smaller than in production (1 GiB), because file systems without sparse files would allocate all of it.
COMMIT_LOG_FILE_BYTES = 16 * 1024 * 1024


class EmbeddedCluster:
    """A NameServer, `brokers` masters, and `replicas` - 1 slaves of each, on free ports of 127.0.0.1.

    Example:
        with EmbeddedCluster(auto_create_topic_enable=False) as cluster:
            client = AdminClient(cluster.name_server)

    If its thread dies, all servers stop, and `stop` raises ThreadDied with the cause, so that the test fails.

    Args:
        brokers: Number of masters. Default: 1.
        directory: Directory of the files. By default a temporary one, which is deleted at the end.
        replicas: Number of replicas of each broker, including the master. With several, a send succeeds when two of
            them have the message. Default: 1.
        options: Fields of every broker's BrokerConfig, StoreConfig or ReplicationConfig.

    Attributes:
        name_server: HOST:PORT of the NameServer. Like the other attributes, it is set after the start.
        brokers: HOST:PORT of each master.
        slaves: HOST:PORT of each slave.
        directory: Directory of the files.
    """

    def __init__(self, brokers: int = 1, directory: Path | None = None, *, replicas: int = 1, **options: Any) -> None:
        self.name_server = ""
        self.brokers: list[str] = []
        self.slaves: list[str] = []
        self._broker_count = brokers
        self._replicas = replicas
        self.directory = directory
        self._broker_options, self._store_options, self._replication_options = _split(options)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._thread: SupervisedThread | None = None
        #: Error that ended the thread.
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def start(self) -> None:
        """Starts the servers and waits until every broker has registered. Raises the errors of a server's start."""
        if self._thread is not None:
            raise GantryError("the cluster has been started already")
        if self.directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="gantry-")
            self.directory = Path(self._temporary.name)
        started: Future[None] = Future()
        self._error = None
        self._thread = SupervisedThread("gantry-cluster", partial(self._run, started), self._died)
        self._thread.start()
        try:
            started.result(START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the brokers, then the NameServer, and deletes the temporary directory.

        Raises:
            ThreadDied: The thread has died, or a server failed to stop.
            GantryError: The cluster does not stop in time.
        """
        if self._thread is not None:
            if self._loop is not None and self._stopping is not None and self._thread.is_alive:
                # RuntimeError: the thread has just ended and its event loop is closed.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._stopping.set)
            if not self._thread.join(STOP_TIMEOUT_S):
                raise GantryError(f"the cluster did not stop in {STOP_TIMEOUT_S:g} s")
            self._thread = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
            self.directory = None
        error, self._error = self._error, None
        if error is not None:
            raise ThreadDied(f"the thread of the cluster died: {type(error).__name__}: {error}") from error

    def __enter__(self) -> EmbeddedCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, started: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve(started))
        except BaseException as e:
            if started.done():
                raise
            started.set_exception(e)

    def _died(self, error: BaseException) -> None:
        self._error = error

    async def _serve(self, started: Future[None]) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        assert self.directory is not None
        root = self.directory
        async with AsyncExitStack() as stack:
            name_server = NameServer(self._namesrv_config(root))
            await name_server.start()
            stack.push_async_callback(name_server.stop)
            self.name_server = name_server.address
            for number in range(self._broker_count):
                for replica in range(self._replicas):
                    broker = Broker(self._broker_config(root, number, replica))
                    await broker.start()
                    stack.push_async_callback(broker.stop)
                    (self.slaves if replica else self.brokers).append(broker.address)
            started.set_result(None)
            await self._stopping.wait()

    def _namesrv_config(self, root: Path) -> NamesrvConfig:
        return NamesrvConfig(
            bind_address=HOST,
            listen_port=0,
            kv_config_path=root / "namesrv" / "kvConfig.json",
            config_store_path=root / "namesrv" / "namesrv.properties",
        )

    def _broker_config(self, root: Path, number: int, replica: int) -> BrokerConfig:
        store: dict[str, Any] = {
            "store_path_root_dir": root / replica_name(number, replica),
            "mapped_file_size_commit_log": COMMIT_LOG_FILE_BYTES,
        } | self._store_options
        replication: dict[str, Any] = {}
        broker: dict[str, Any] = {
            "broker_name": broker_name(number),
            "broker_ip1": HOST,
            "bind_address": HOST,
            "listen_port": 0,
            "namesrv_addr": [self.name_server],
        }
        if self._replicas > 1:
            replication["in_sync_replicas"] = IN_SYNC_REPLICAS
            broker |= {
                "broker_id": replica,
                "broker_role": BrokerRole.SLAVE if replica else BrokerRole.SYNC_MASTER,
                "slave_read_enable": True,
            }
        return BrokerConfig(
            **broker | self._broker_options,
            store=StoreConfig(**store),
            replication=ReplicationConfig(**replication | self._replication_options),
        )


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Splits options into those of BrokerConfig, StoreConfig and ReplicationConfig. Raises ConfigError for others."""
    of_broker, of_store, of_replication = (
        {name: options[name] for name in options.keys() & {field.name for field in fields(cls)}}
        for cls in (BrokerConfig, StoreConfig, ReplicationConfig)
    )
    if unknown := sorted(options.keys() - of_broker.keys() - of_store.keys() - of_replication.keys()):
        raise ConfigError(f"{', '.join(unknown)}: no field of BrokerConfig, StoreConfig or ReplicationConfig")
    return of_broker, of_store, of_replication
