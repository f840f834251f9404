"""Causes and remedies for unreachable servers."""

from __future__ import annotations

from gantrymq.errors import BrokerError, ConnectFailed, ConnectionLost, GantryError, ProtocolError, RequestTimeout
from gantrymq.protocol.codes import ResponseCode
from gantrymq.remoting.tls_problems import tls_problem
from gantrymq.system import network

#: Local errors of a handshake that mean that the peer has closed the connection.
_HUNG_UP = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)


def is_tls_problem(error: GantryError, over_tls: bool) -> bool:
    """Returns whether the server is reachable and TLS is the cause."""
    cause = error.__cause__
    return tls_problem(cause) is not None or (over_tls and isinstance(error, ConnectionLost))


def why_unreachable(error: GantryError, over_tls: bool) -> tuple[str, str]:
    """Returns the cause, and the remedy with placeholders {server} and {option}."""
    cause = error.__cause__
    if (of_tls := tls_problem(cause)) is not None:
        why, remedy = of_tls
        return f"{why}.", f"{remedy[0].upper()}{remedy[1:]}."
    if isinstance(error, ConnectionLost) and over_tls:
        return (
            "it closed the TLS connection as soon as that was made: it wants a client's certificate "
            "(tls.server.need.client.auth), and got none or one that it doesn't trust.",
            "Give tls.client.certPath and tls.client.keyPath in the file of --tls-config, signed by whom the server's "
            "tls.server.trustCertPath names.",
        )
    if isinstance(error, ConnectionLost | ProtocolError):
        return (
            "something listens there, but it doesn't speak with us: no NameServer or broker, or one that takes TLS "
            "only (tls.server.mode=enforcing).",
            "Check the port in {option}; for TLS give --tls-config FILE with tls.enable=true.",
        )
    if isinstance(error, BrokerError):
        return _why_refused(error)
    if isinstance(cause, _HUNG_UP) and over_tls:
        return (
            "it closed the connection in the TLS handshake: it takes no TLS (tls.server.mode=disabled, or no "
            "certificate), or is another kind of server.",
            "Leave out --tls-config, or correct the port in {option}.",
        )
    if isinstance(cause, ConnectionRefusedError):
        return (
            "the machine is there, but nobody listens at that port.",
            "Start {server}, or correct the port in {option}.",
        )
    if isinstance(cause, network.UnknownHost):
        return "this machine can't resolve the host name.", "Correct the name in {option}, or make it known here."
    if isinstance(cause, TimeoutError) or isinstance(error, RequestTimeout):
        return (
            "nothing comes back: a wrong address, a firewall, a container's port that isn't published, or a server "
            "that hangs.",
            "Try the address from this machine (nc -vz HOST PORT); open the port, or correct {option}.",
        )
    if isinstance(cause, ValueError):
        return "an address is HOST:PORT.", "Correct {option}."
    if isinstance(error, ConnectFailed):
        return "the network refuses it.", "Check the address in {option}, routes and firewalls."
    return "it answers with an error.", "Look into its log."


def _why_refused(error: BrokerError) -> tuple[str, str]:
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return (
            "it answers, but not to a NameServer's requests: it is a broker.",
            "Give the address of a NameServer (port 9876 by default), not a broker's (10911).",
        )
    return "it answers with an error.", "Look into its log."
