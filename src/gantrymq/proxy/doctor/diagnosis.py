"""Checks a proxy from the view of its clients, and reports each fault with its cause and a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from gantrymq.client.credentials import Credentials
from gantrymq.client.doctor.finding import Finding, ok, problem, warning
from gantrymq.client.doctor.unreachable import why_unreachable
from gantrymq.errors import ConnectFailed, GantryError, RequestTimeout
from gantrymq.proxy.doctor.observation import ProxySeen, observe
from gantrymq.proxy.doctor.proxy_client import Answer
from gantrymq.proxy.statuses import GrpcCode
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.system import clock, tls

_LOG = "Look into the proxy's log; gantry doctor -n NAMESERVER, from the proxy's machine, says what it would meet."


async def diagnose_proxy(
    address: str,
    topic: str | None = None,
    *,
    ssl_context: tls.SSLContext | None = None,
    credentials: Credentials | None = None,
    timeout_ms: int = 3000,
) -> list[Finding]:
    """Checks a proxy from this machine and returns the findings.

    The check changes nothing, and registers no client at a broker. A proxy that does not respond is a finding, not an
    error.

    Args:
        address: The proxy's host:port.
        topic: If given, also checks the topic's route, and that the proxy reaches the topic's brokers.
        ssl_context: Settings for TLS. Without them, the check tries both TLS and plain connections.
        credentials: Keys of the user who signs the calls.
        timeout_ms: Timeout of each step, ms. Default: 3000.
    """
    seen = await observe(address, topic, ssl_context=ssl_context, credentials=credentials, timeout_s=timeout_ms / 1000)
    return judge(seen)


def judge(seen: ProxySeen) -> list[Finding]:
    """Returns the findings for an observation, in a client's order: connection, route, settings, addresses, brokers."""
    unusable = _unusable(seen)
    if unusable is not None:
        return [unusable]
    findings = [*_connections(seen), *_route(seen)]
    if not isinstance(seen.route, Answer):
        return findings
    if not _is_unauthorized(seen.route):
        findings += _settings(seen)
    return [*findings, *_named(seen), *_brokers(seen)]


def _unusable(seen: ProxySeen) -> Finding | None:
    """Returns a finding if neither a TLS nor a plain connection to the proxy works, otherwise None."""
    error = seen.over_tls if seen.tls_given else seen.plain and seen.over_tls and seen.plain
    if error is None:
        return None
    what = f"proxy {seen.address} can't be used: {error}"
    if isinstance(error, ConnectFailed):
        why, remedy = why_unreachable(error, seen.tls_given)
        return problem(what, why, remedy.format(server="the proxy", option="--proxy (its port is 8081 by default)"))
    return problem(
        what,
        "something listens there, but it doesn't begin as a proxy does.",
        "Check the port: a proxy's is 8081 (grpcServerPort), a NameServer's 9876, a broker's 10911.",
    )


def _connections(seen: ProxySeen) -> Iterator[Finding]:
    """Yields findings about plain and TLS connections and the certificate."""
    if seen.over_tls is not None:
        yield warning(
            f"proxy {seen.address} accepts no TLS: {seen.over_tls}",
            "Apache's clients for Java, C++, C# and Go use TLS unless they are told not to.",
            "Let it have TLS (tls.server.mode=permissive and a certificate, or tls.test.mode.enable=true), or turn it "
            "off in clients: in Java, ClientConfiguration.newBuilder().enableSsl(false).",
        )
        return
    kinds = "only TLS connections" if seen.plain is not None else "plain and TLS connections"
    named, finding = _certificate(seen)
    yield ok(f"proxy {seen.address} accepts {kinds}; its certificate: {named}")
    if finding is not None:
        yield finding


def _certificate(seen: ProxySeen) -> tuple[str, Finding | None]:
    """Returns a description of the certificate, and a finding if it has expired."""
    from cryptography import x509

    assert seen.certificate is not None
    try:
        certificate = x509.load_der_x509_certificate(seen.certificate)
        name, until = certificate.subject.rfc4514_string(), certificate.not_valid_after_utc
    except ValueError as e:
        return f"unreadable, {e}", None
    text = f"{name or 'of no name'}, until {until:%Y-%m-%d}"
    if until > datetime.fromtimestamp(clock.now_ms() / 1000, UTC):
        return text, None
    return text, warning(
        f"the certificate of proxy {seen.address} has expired",
        "clients that check certificates refuse it; Apache's don't check them.",
        "Give the proxy a new one (tlsCertPath, tlsKeyPath); it needs no restart.",
    )


def _route(seen: ProxySeen) -> Iterator[Finding]:
    route = seen.route
    if not isinstance(route, Answer):
        yield _no_answer(seen, "QueryRoute", route)
        return
    if route.response is None:
        yield problem(
            f"proxy {seen.address} answers with gRPC's {_grpc_name(route.code)}: {route.message or 'without a word'}",
            "what speaks gRPC there isn't a proxy of RocketMQ, or something between passes its calls to others.",
            "Check the address; a load balancer must pass all paths on.",
        )
        return
    status = route.response.status
    user = f" of user {seen.user}" if seen.user is not None else ""
    match status.code:
        case pb.OK:
            brokers = sorted({queue.broker.name for queue in seen.queues})
            kinds = sorted({pb.MessageType.Name(kind) for queue in seen.queues for kind in queue.accept_message_types})
            yield ok(
                f"topic {seen.topic} has {len(seen.queues)} queues on {', '.join(brokers) or 'no broker'} and accepts "
                f"{', '.join(kinds) or 'all'} messages; the query took {route.took_ms:.1f} ms"
            )
        case pb.TOPIC_NOT_FOUND if seen.topic is None:
            yield ok(f"it answers a call{user}, and its NameServers answer it, in {route.took_ms:.1f} ms")
        case pb.TOPIC_NOT_FOUND:
            yield problem(
                f"the proxy knows no topic {seen.topic}: {status.message}",
                "clients of a proxy never make a topic by sending to it, whatever autoCreateTopicEnable says.",
                f"gantry admin updateTopic -n NAMESERVER -c CLUSTER -t {seen.topic} -a +message.type=NORMAL; if "
                "brokers have it, the proxy's namesrvAddr names another cluster's NameServers.",
            )
        case pb.UNAUTHORIZED | pb.FORBIDDEN if seen.topic is None and "permission" in status.message:
            yield ok(f"it knows the user {seen.user}, who may do nothing with a topic that isn't there")
        case pb.UNAUTHORIZED | pb.FORBIDDEN:
            yield problem(
                f"the proxy refuses a call{user or ' without signature'}: {status.message}",
                "it has access control: clients sign with a user's name and password, and need a policy.",
                "Give name and password as accessKey and secretKey in the file of --acl-config; rights are given with "
                "gantry admin createAcl.",
            )
        case pb.ILLEGAL_TOPIC:
            yield problem(
                f"the proxy refuses the topic's name: {status.message}",
                "names have at most 127 letters, digits and %|-_, and topics of the system are not for clients.",
                "Choose another name.",
            )
        case _:
            yield problem(
                f"the proxy can't say where topic {seen.topic} is: {_status_text(status)}"
                if seen.topic is not None
                else f"the proxy gets no answer of its NameServers: {_status_text(status)}",
                "it is there itself, and can't reach its NameServers or brokers: its clients can do nothing.",
                f"Check namesrvAddr in its rmq-proxy.json, and that these run. {_LOG}",
            )


def _settings(seen: ProxySeen) -> Iterator[Finding]:
    """Yields findings about the settings that the proxy returns to a producer."""
    answer = seen.settings
    if isinstance(answer, Answer) and answer.response is not None and answer.response.status.code == pb.OK:
        settings = answer.response.settings
        yield ok(
            f"settings for producers: bodies of at most {settings.publishing.max_body_size} "
            f"bytes, {settings.backoff_policy.max_attempts} attempts"
        )
    elif isinstance(answer, RequestTimeout):
        yield problem(
            f"calls are answered, but nothing comes on a stream: {answer}",
            "clients tell their settings on a stream that stays open (Telemetry), and don't start without an answer. A "
            "load balancer or an ingress in between gathers streams, or wants their end first.",
            "Have it pass gRPC on as it comes (HTTP/2 to the proxy, no buffering), or let clients come by TCP.",
        )
    elif isinstance(answer, Answer):
        status = answer.response.status if answer.response is not None else None
        what = _status_text(status) if status is not None else f"gRPC's {_grpc_name(answer.code)}: {answer.message}"
        yield problem(f"the proxy refuses a producer's settings: {what}", "clients don't start without them.", _LOG)
    else:
        yield _no_answer(seen, "Telemetry", answer)


def _named(seen: ProxySeen) -> Iterator[Finding]:
    for address, error in seen.named.items():
        if error is None:
            yield ok(f"routes name {address} as the proxy, which answers, too")
            continue
        why = "clients that have a route go there." + (
            f" {why_unreachable(error, False)[0]}" if isinstance(error, ConnectFailed) else ""
        )
        yield problem(
            f"routes name {address} as the proxy, which can't be used from here: {error}",
            why,
            "Where clients come by another port than grpcServerPort (a container's, a load balancer's), set "
            "useEndpointPortFromRequest=true in the proxy's rmq-proxy.json, or publish that port as well.",
        )


def _brokers(seen: ProxySeen) -> Iterator[Finding]:
    for name, answer in sorted(seen.brokers.items()):
        if isinstance(answer, Answer):
            if answer.response is None or answer.response.status.code in (
                pb.NOT_IMPLEMENTED,
                pb.UNAUTHORIZED,
                pb.FORBIDDEN,
            ):
                # No finding: Apache's proxy has no such call, or the user has no right to make it.
                continue
            if answer.response.status.code == pb.OK:
                yield ok(f"the proxy reaches {name} in {answer.took_ms:.1f} ms")
                continue
        text = _status_text(answer.response.status) if isinstance(answer, Answer) else str(answer)
        yield problem(
            f"the proxy does not reach {name}: {text}",
            "sends to this broker's queues fail, and its messages are not delivered.",
            f"The proxy's machine must reach the address that {name} advertises (brokerIP1, listenPort), with TLS if "
            f"that is demanded. {_LOG}",
        )


def _no_answer(seen: ProxySeen, method: str, error: GantryError | None) -> Finding:
    return problem(
        f"proxy {seen.address} takes connections, and doesn't answer {method}: {error}",
        "it hangs, is overloaded, or isn't a proxy; or something between passes no gRPC on.",
        _LOG,
    )


def _is_unauthorized(route: Answer) -> bool:
    return route.response is not None and route.response.status.code == pb.UNAUTHORIZED


def _status_text(status: pb.Status) -> str:
    try:
        name = pb.Code.Name(status.code)
    except ValueError:
        name = str(status.code)
    return f"{name}: {status.message}"


def _grpc_name(code: int) -> str:
    try:
        return GrpcCode(code).name
    except ValueError:
        return str(code)
