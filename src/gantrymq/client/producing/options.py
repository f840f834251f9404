"""What a producer can be told, and what it refuses at once: a wrong argument had better fail where it is given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TypedDict

from gantrymq.client.name_server_discovery import is_discovery_url, split_addresses
from gantrymq.client.producing.send_hook import SendHook
from gantrymq.errors import ClientError, IllegalMessage
from gantrymq.protocol.compression import CompressionType
from gantrymq.protocol.topic_name import group_problem
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.connection import RpcHook
from gantrymq.system import tls


class ProducerOptions(TypedDict, total=False):
    """The keyword arguments of `Producer`, which says what each means."""

    namespace: str
    retry_times: int
    retry_when_not_stored_safely: bool
    try_timeout_ms: int | None
    send_latency_fault_enable: bool
    start_detector_enable: bool
    linger_ms: float
    batch_size: int
    buffer_bytes: int
    compress_over: int
    compression: CompressionType
    max_message_size: int
    create_topic_key: str
    default_topic_queue_nums: int
    enable_trace: bool
    trace_topic: str
    send_hooks: Sequence[SendHook]
    ssl_context: tls.SSLContext | None
    hooks: Sequence[RpcHook]


def check_names(name_servers: Sequence[str] | str, group: str) -> None:
    """Raises ClientError for addresses that can't be any, IllegalMessage for such a group."""
    if not isinstance(group, str):
        raise IllegalMessage(f"group={group!r}: the name of a group is wanted")
    if problem := group_problem(group):
        raise IllegalMessage(problem)
    if isinstance(name_servers, str):
        if is_discovery_url(name_servers):
            return
        name_servers = split_addresses(name_servers)
    if not name_servers:
        raise ClientError("no NameServer given: pass at least one HOST:PORT")
    for address in name_servers:
        try:
            parse_address(address)
        except (ValueError, AttributeError):
            raise ClientError(f"name_servers: {address!r} is no HOST:PORT; NameServers listen at 9876") from None


def check_options(options: ProducerOptions) -> None:
    """Raises ClientError for values that can't be meant."""
    for name, least in (("retry_times", 0), ("default_topic_queue_nums", 1), ("compress_over", 0)):
        value = options.get(name)
        if not isinstance(value, int) or value < least:
            raise ClientError(f"{name}={value!r}: a whole number is wanted, {least} or more")
    if not 0 < options["max_message_size"] < 2**31:
        raise ClientError(f"max_message_size={options['max_message_size']!r}: more than 0 bytes are wanted")
    if options["try_timeout_ms"] is not None and not (
        isinstance(options["try_timeout_ms"], int) and options["try_timeout_ms"] > 0
    ):
        raise ClientError(f"try_timeout_ms={options['try_timeout_ms']!r}: {_MS}, more than 0")
    if not options["linger_ms"] >= 0:
        raise ClientError(f"linger_ms={options['linger_ms']!r}: 0 or more is wanted")
    if not isinstance(options["compression"], CompressionType):
        known = ", ".join(str(kind) for kind in CompressionType)
        raise ClientError(f"compression={options['compression']!r}: one of {known} is wanted")
    if not isinstance(options["ssl_context"], tls.SSLContext | None):
        raise ClientError(f"ssl_context={options['ssl_context']!r}: an tls.SSLContext is wanted, or None")
    for name in ("hooks", "send_hooks"):
        if not isinstance(options.get(name), Sequence):
            raise ClientError(f"{name}={options.get(name)!r}: a list is wanted, even for one")


_MS = "a whole number of milliseconds is wanted"


def whole_ms(timeout_ms: object) -> int:
    """`timeout_ms` if it can be one. Raises ClientError for seconds, that is a float or a timedelta, and below 0."""
    if isinstance(timeout_ms, int) and not isinstance(timeout_ms, bool) and timeout_ms >= 0:
        return timeout_ms
    hint = ""
    if isinstance(timeout_ms, timedelta):
        hint = f": that is {timeout_ms / timedelta(milliseconds=1):.0f}"
    elif isinstance(timeout_ms, float):
        hint = f": {timeout_ms} s are {timeout_ms * 1000:.0f}"
    raise ClientError(f"timeout_ms={timeout_ms!r}: {_MS}{hint}")
