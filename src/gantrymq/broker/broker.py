"""Broker: builds the features, starts them in order and stops them in the opposite order. Source: BrokerController."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

from gantrymq.background.collector import without_collections
from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig, BrokerRole
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.events import BrokerEvents
from gantrymq.broker.features import Features
from gantrymq.errors import StoreError
from gantrymq.remoting.connection import RequestHandler
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer

log = logging.getLogger(__name__)


class Broker:
    """A broker, master or slave. Create it in a running event loop.

    The constructor binds the port, because records and message ids contain the port number.

    Attributes:
        address: host:port at which clients and other brokers reach this broker.
        handlers: The handler of each request code, in the current role.

    Raises:
        GantryError: The port is in use.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        if config.enable_controller_mode:
            # In controller mode, a broker is a slave until a controller makes it master.
            config.set_role(BrokerRole.SLAVE, -1)
        jobs, events = Jobs(), BrokerEvents()
        self.handlers: dict[int, RequestHandler] = {}
        self._server = RemotingServer(
            self.handlers,
            ListenOptions(config.bind_address, config.listen_port, fast_listen=config.fast_listen_enable),
            tls=config,
            on_close=events.connection_closed.publish,
            jobs=jobs,
        )
        try:
            self.context = context = BrokerContext(config, jobs, events, self._server.port)
            self.features = Features(context, self._server, self.handlers)
        except BaseException:
            self._server.release()
            raise
        features = self.features
        self.address = context.address
        self.jobs = jobs
        self.store = context.store
        self.topics = context.topics
        self.groups = context.groups
        self.offsets = context.offsets
        self.consumer_filters = context.consumer_filters
        self.members = context.members
        self.access = context.access
        self.deliveries = context.deliveries
        self.persistence = context.persistence
        self.polling = features.pulling.polling
        self.pops = features.pops
        self.appender = features.appender
        self.writers = features.writers
        self.deduplication = features.deduplication
        self.replication = features.replication
        self.replicas_manager = features.replicas_manager
        self.acting = features.acting
        self.runtime = features.runtime
        #: The completed steps of `start`, which `stop` reverts.
        self._running = AsyncExitStack()

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Opens the store, starts the features and registers with the NameServers.

        Raises:
            StoreLocked: Another broker uses the directory.
            StoreError: The store can't be read.
            ConfigError: The configuration has an illegal value.
            GantryError: A feature can't start. Everything that has started is stopped.
        """
        features = self.features
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._server.stop)
            await self._server.bind()
            self.context.store.open()
            stack.callback(self.context.store.close)
            stack.push_async_callback(self.context.remoting.close)
            # Otherwise collections visit the objects of thousands of topics and queues again and again.
            with without_collections():
                for feature in features.all:
                    feature.load()
            features.role_changes.begin(features.all, features.acting_features)
            stack.callback(self._save)
            for feature in features.all:
                stack.push_async_callback(feature.stop)
                await feature.start()
                await (feature.become_slave() if self.context.is_slave else feature.become_master())
            if features.replicas_manager is not None:
                stack.push_async_callback(features.replicas_manager.end)
                features.replicas_manager.begin()
            self._running = stack.pop_all()
        log.info("broker %s of %s at %s", self.config.broker_name, self.config.broker_cluster_name, self.address)

    async def stop(self) -> None:
        """Unregisters, answers pending requests, closes the connections, then closes the store.

        Every step runs, even if an earlier one raises. The error is raised at the end. A second call does nothing.
        """
        await self._running.aclose()

    def _save(self) -> None:
        """Writes the unsaved changes of all tables. Errors are only logged, so that the store is closed in any case."""
        for feature in self.features.all:
            try:
                feature.save()
            except StoreError as e:
                log.error("stopped without the last changes: %s", e)
