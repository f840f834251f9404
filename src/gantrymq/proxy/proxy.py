"""The proxy server: creates, starts and stops all parts of a proxy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from gantrymq.background.jobs import Jobs
from gantrymq.client.credentials import rpc_hooks
from gantrymq.errors import ConfigError, GantryError
from gantrymq.metrics import Metric
from gantrymq.metrics_export import MetricsOutput
from gantrymq.proxy.access_log import AccessLog
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.call import Handlers
from gantrymq.proxy.clients import Clients
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.consumer.acks import Acks
from gantrymq.proxy.consumer.handle_signature import HandleSignatures
from gantrymq.proxy.consumer.lite_subscriptions import LiteSubscriptionActivity
from gantrymq.proxy.consumer.pop_requests import PopRequests
from gantrymq.proxy.consumer.pull_message import PullMessageActivity
from gantrymq.proxy.consumer.receipt_handle_manager import ReceiptHandleManager
from gantrymq.proxy.consumer.receive_message import ReceiveMessageActivity
from gantrymq.proxy.grpc_call import Guard, Service
from gantrymq.proxy.members import Members
from gantrymq.proxy.membership import Membership
from gantrymq.proxy.message_limits import MessageLimits
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.metrics import CallFigures, collect, labels_of
from gantrymq.proxy.producer.processor import ProducerProcessor
from gantrymq.proxy.producer.transactions import Transactions
from gantrymq.proxy.remoting.request_observer import RequestObserver
from gantrymq.proxy.remoting.server import RemotingProtocolServer
from gantrymq.proxy.routing import Routing
from gantrymq.proxy.server import ProxyServer
from gantrymq.proxy.telemetry import Telemetry
from gantrymq.proxy.telemetry_requests import TelemetryRequests
from gantrymq.remoting.address import reachable
from gantrymq.remoting.connection import RpcHook
from gantrymq.remoting.tls import client_context

if TYPE_CHECKING:
    from gantrymq.proxy.remoting.access import RemotingAccess

log = logging.getLogger(__name__)


class Proxy:
    """One proxy. It must be created in a running event loop.

    `address` is host:port for clients on this machine. `hooks` are called for requests to brokers. Raises GantryError
    if a port is in use, ClientError without NameServers, and ConfigError for an invalid configuration.
    """

    def __init__(self, config: ProxyConfig, *, hooks: Sequence[RpcHook] = ()) -> None:
        self.config = config
        self.jobs = Jobs()
        self.clients = Clients()
        hooks = rpc_hooks(config.credentials(), hooks)
        self.brokers = Brokers(config.namesrv_addr, ssl_context=client_context(config), hooks=hooks)
        metadata = Metadata(config, self.brokers)
        transactions = Transactions(config)
        routing = Routing(config, self.brokers, metadata)
        requests = PopRequests(self.brokers)
        signatures = HandleSignatures(config)
        self._membership = Membership(config, self.clients, self.jobs)
        self._receipt_handles = ReceiptHandleManager(config, requests, metadata, self.clients, self.jobs)
        self._receive_message = ReceiveMessageActivity(
            config, self.brokers, metadata, self.clients, requests, self._receipt_handles, signatures
        )
        self.members = Members(config, self.brokers, self.clients, self.jobs)
        telemetry_requests = TelemetryRequests(config, self.brokers, self.clients, transactions)
        self._lite_subscriptions = LiteSubscriptionActivity(config, self.brokers, self.clients)
        parts = (
            routing,
            self._membership,
            ProducerProcessor(config, self.brokers, metadata, transactions),
            self._receive_message,
            Acks(config, requests, self._receipt_handles, signatures),
            PullMessageActivity(config, self.brokers),
            Telemetry(config, metadata, self.clients, telemetry_requests),
            self._lite_subscriptions,
        )
        handlers: Handlers = {name: handler for part in parts for name, handler in part.handlers.items()}
        #: Names of the supported rpcs.
        self.methods = frozenset(handlers)
        guard: Guard | None = None
        remoting_access: RemotingAccess | None = None
        if config.authentication_enabled or config.authorization_enabled:
            # Imported here, so that these modules are loaded only with access control.
            from gantrymq.proxy.access.access import Access
            from gantrymq.proxy.remoting.access import RemotingAccess

            guard = Access(config, metadata, self.clients)
            remoting_access = RemotingAccess(config, metadata)
        page = config.page_address(config.bind_address)
        self._metrics = MetricsOutput(config, page, self._collect, self.jobs, meter="broker-meter")
        # Calls are counted only if metrics are exported, because counting takes time.
        counts = self._metrics.is_used
        self._figures = CallFigures() if counts else None
        self._remoting_figures = CallFigures() if counts else None
        path = config.access_log_path
        self._access_log = AccessLog(path, self.jobs) if path is not None else None
        self._service = Service(
            handlers,
            MessageLimits(config.grpc_max_inbound_message_size, config.max_message_size),
            guard,
            self._figures,
            self._access_log,
        )
        self.remoting = RemotingProtocolServer(
            config,
            self.brokers,
            metadata,
            remoting_access,
            self.jobs,
            ssl_context=client_context(config),
            http2=(lambda: self._server.connected()) if config.enable_remoting_local_proxy_grpc else None,
            seen=RequestObserver(self._remoting_figures, self._access_log) if counts or path is not None else None,
        )
        try:
            self._server = ProxyServer(
                self._service,
                host=config.bind_address,
                port=config.grpc_server_port,
                tls=config,
                max_idle_s=config.grpc_client_idle_time_mills / 1000,
                jobs=self.jobs,
                shared_port=config.shared_ports,
            )
        except GantryError:
            self.remoting.release()
            raise
        routing.port = self._server.port
        self.address = reachable(config.bind_address, self._server.port)
        #: host:port for clients of the remoting protocol on this machine.
        self.remoting_address = reachable(config.bind_address, self.remoting.port)
        self._running = AsyncExitStack()
        self._running.push_async_callback(self.brokers.stop)
        self._running.push_async_callback(self._stop_servers)

    async def start(self) -> None:
        """Serves at `address`. Raises GantryError if a port is in use, ConfigError for invalid TLS files.

        After an error, the parts that were started are stopped.
        """
        async with self._running.pop_all() as stack:
            self.brokers.start()
            # Stopped last, in reverse order: renewals make messages visible, then members are unregistered at brokers.
            stack.push_async_callback(self.members.stop)
            self.members.start()
            stack.push_async_callback(self._receipt_handles.stop)
            self._receipt_handles.start()
            stack.push_async_callback(self._receive_message.stop)
            stack.push_async_callback(self._lite_subscriptions.stop)
            stack.push_async_callback(self._membership.stop)
            self._membership.start()
            if self._access_log is not None:
                try:
                    self._access_log.start()
                except OSError as e:
                    raise ConfigError(f"accessLogPath={self.config.access_log_path}: {e}") from e
                stack.push_async_callback(self._access_log.stop)
            stack.push_async_callback(self._stop_servers)
            await self._server.start()
            await self.remoting.start()
            stack.push_async_callback(self._metrics.stop)
            await self._metrics.start()
            self._running = stack.pop_all()
        log.info("the proxy serves at %s, and by the remoting protocol at %s", self.address, self.remoting_address)

    async def _stop_servers(self) -> None:
        """Stops both servers concurrently, because each of them waits some seconds for running calls."""
        await asyncio.gather(self._server.stop(), self.remoting.stop())

    @property
    def metrics_port(self) -> int:
        """The port for Prometheus, after `start`; 0 without a page."""
        return self._metrics.page_port

    def _collect(self) -> Iterator[Metric]:
        assert self._figures is not None
        assert self._remoting_figures is not None
        yield from collect(
            labels_of(self.config),
            self._figures,
            self._remoting_figures,
            self.clients,
            self.jobs,
            connections=len(self._server.connections),
            remoting_connections=len(self.remoting.connections),
            buffered_bytes=self._service.incomplete_messages.buffered_bytes,
            request_bytes=self._service.request_memory.bytes,
            unread_bytes=self._service.unread.bytes,
        )

    async def stop(self) -> None:
        """Ends calls, unregisters clients at brokers and closes all connections. A second call does nothing.

        A stop takes at most 9 s: 3 s for running calls, 2 s to make in-flight messages visible, 2 s to unregister
        clients, and less than 2 s to close connections. If a collector of metrics hangs, it takes 2 s longer.
        """
        await self._running.aclose()
