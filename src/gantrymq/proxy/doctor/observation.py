"""Observations of a proxy: its connections, and its responses to a client's calls.

The calls request a route, send settings, and query an offset at each broker.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gantrymq.client.credentials import Credentials
from gantrymq.errors import GantryError
from gantrymq.proxy.doctor.proxy_client import Answer, ProxyClient
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.tls import TlsConfig, client_context
from gantrymq.system import tls

#: Topic of the route request if no topic is given. This topic does not exist. The error then shows that a NameServer
#: responded.
PROBE = "gantry-doctor"
#: Largest number of checked brokers of a topic, and of the checked addresses in a route.
MOST_TRIED = 20


@dataclass
class ProxySeen:
    """The result of each step, or the error of a failed step. Steps that were not reached stay None or empty."""

    address: str
    topic: str | None
    #: The user who signed the calls; None for unsigned calls.
    user: str | None
    #: True if TLS used the caller's settings.
    tls_given: bool
    plain: GantryError | None = None
    over_tls: GantryError | None = None
    certificate: bytes | None = None
    route: Answer | GantryError | None = None
    settings: Answer | GantryError | None = None
    #: Other addresses in the route, with the error of a connection to each; None for a connection that works.
    named: dict[str, GantryError | None] = field(default_factory=dict)
    #: For each broker of the topic: the response, or the error, of a call for which the proxy needs this broker.
    brokers: dict[str, Answer | GantryError] = field(default_factory=dict)

    @property
    def queues(self) -> list[Any]:
        """The queues in the route; empty if there is no route."""
        return (
            list(self.route.response.message_queues) if isinstance(self.route, Answer) and self.route.response else []
        )


async def observe(
    address: str,
    topic: str | None,
    *,
    ssl_context: tls.SSLContext | None,
    credentials: Credentials | None,
    timeout_s: float,
) -> ProxySeen:
    """Observes a proxy. Errors of the proxy are recorded, not raised. The timeout of each step is `timeout_s`."""
    seen = ProxySeen(
        address, topic, credentials.access_key if credentials is not None else None, ssl_context is not None
    )
    any_server = client_context(TlsConfig(tls_enable=True))
    for_tls = ssl_context or any_server

    def client(where: str, context: tls.SSLContext | None) -> ProxyClient:
        return ProxyClient(where, ssl_context=context, credentials=credentials, timeout_s=timeout_s)

    try:
        async with client(address, for_tls) as over_tls:
            seen.certificate = over_tls.certificate
    except GantryError as e:
        seen.over_tls = e
    try:
        async with client(address, None):
            pass
    except GantryError as e:
        seen.plain = e
    if ssl_context is not None or seen.plain is not None:
        if seen.over_tls is not None:
            return seen
    else:
        for_tls = None
    try:
        async with client(address, for_tls) as caller:
            await _ask(seen, caller)
    except GantryError as e:
        seen.route = seen.route or e
    for each in seen.named:
        try:
            async with client(each, for_tls):
                pass
        except GantryError as e:
            seen.named[each] = e
    return seen


async def _ask(seen: ProxySeen, caller: ProxyClient) -> None:
    try:
        endpoints = _endpoints(seen.address)
        request = rpc_pb.QueryRouteRequest(topic=pb.Resource(name=seen.topic or PROBE), endpoints=endpoints)
        seen.route = await caller.call("QueryRoute", request)
    except GantryError as e:
        seen.route = e
        return
    for queue in seen.queues:
        for each in queue.broker.endpoints.addresses:
            where = format_address(each.host, each.port)
            if where != seen.address and len(seen.named) < MOST_TRIED:
                seen.named[where] = None
    # The settings are those of a producer without topics. Such a producer needs no rights, and the proxy registers it
    # at no broker.
    settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(), user_agent=pb.UA(language=pb.PYTHON))
    try:
        seen.settings = await caller.call("Telemetry", rpc_pb.TelemetryCommand(settings=settings))
    except GantryError as e:
        seen.settings = e
    if isinstance(seen.settings, Answer):
        with suppress(GantryError):
            await caller.call("NotifyClientTermination", rpc_pb.NotifyClientTerminationRequest())
    for queue in seen.queues:
        name = queue.broker.name
        can_be_read = queue.permission in (pb.READ, pb.READ_WRITE) and not queue.broker.id
        if can_be_read and name not in seen.brokers and len(seen.brokers) < MOST_TRIED:
            offset = rpc_pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=pb.END)
            try:
                seen.brokers[name] = await caller.call("QueryOffset", offset)
            except GantryError as e:
                seen.brokers[name] = e


def _endpoints(address: str) -> pb.Endpoints:
    """Returns an address in the format of Apache's clients."""
    host, port = parse_address(address)
    try:
        scheme = pb.IPv6 if ipaddress.ip_address(host).version == 6 else pb.IPv4
    except ValueError:
        scheme = pb.DOMAIN_NAME
    return pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=host, port=port)])
