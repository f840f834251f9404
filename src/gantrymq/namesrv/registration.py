"""What a broker sends with REGISTER_BROKER, read and checked before it gets near the tables.

Java's NameServer takes registrations of any size, if a frame has them. Bounds here are far above what clusters have.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from itertools import count

from gantrymq.errors import BodyError, HeaderError, RequestRefused
from gantrymq.protocol.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigTable,
    register_body_in_steps,
)
from gantrymq.protocol.codes import VERSION_3_0_11, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import BrokerRequestHeader, RegisterBrokerRequestHeader

#: Names and addresses may not be longer. Java has no bound here; its longest topic names have 255 characters.
MAX_NAME_LENGTH = 1024
#: Topics of one broker; more don't fit into a frame of JSON.
MAX_TOPICS = 100_000
#: Different forms of topics at one broker: numbers of queues, permissions, flags. Each costs memory, and time when the
#: broker leaves; clusters have a few.
MAX_FORMS = 2_000
MAX_FILTER_SERVERS = 100

#: First byte of each zlib stream with the usual 32 KiB window; JSON begins otherwise.
_ZLIB_START = b"\x78"
_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
#: So many topics are checked in a step.
_STEP_TOPICS = 500

#: What a broker registers: the header, and the body.
Registration = tuple[RegisterBrokerRequestHeader, RegisterBrokerBody]


def read_registration(request: RemotingCommand) -> Generator[None, None, Registration]:
    """Header and body, in steps. Raises HeaderError, BodyError, or RequestRefused when the CRC-32 doesn't match."""
    header = request.read_header(RegisterBrokerRequestHeader)
    check_broker(header)
    timeout_ms = header.heartbeat_timeout_millis
    if timeout_ms is not None and not 0 <= timeout_ms <= _MAX_INT64:
        raise HeaderError(f"heartbeatTimeoutMillis {timeout_ms}: must be a number of milliseconds")
    if header.body_crc32 != 0 and header.body_crc32 != zlib.crc32(request.body) & 0x7FFFFFFF:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"crc32 not match: the body of {len(request.body)} bytes was damaged on its way"
        )
    # 5 ms for 16 MiB.
    yield
    return header, (yield from _read_body(request, header))


def check_broker(header: BrokerRequestHeader) -> None:
    """Raises HeaderError for names, an address or an id that no broker has."""
    for key, value in (
        ("clusterName", header.cluster_name),
        ("brokerName", header.broker_name),
        ("brokerAddr", header.broker_addr),
    ):
        if not value.strip() or len(value) > MAX_NAME_LENGTH:
            raise HeaderError(f"{key} {value[:100]!r}: must have 1 to {MAX_NAME_LENGTH} characters")
    if not 0 <= header.broker_id <= _MAX_INT64:
        raise HeaderError(f"brokerId {header.broker_id}: must be 0 for a master, more for a slave")


def _read_body(
    request: RemotingCommand, header: RegisterBrokerRequestHeader
) -> Generator[None, None, RegisterBrokerBody]:
    if request.version < 0:
        raise HeaderError(f"version {request.version}: no MQVersion is negative")
    if not request.body:
        # A broker without topics. One so old that it knows no filter servers leaves those that are there.
        table = TopicConfigTable(data_version=DataVersion(0, 0, 0))
        return RegisterBrokerBody(table, None if request.version < VERSION_3_0_11 else [])
    # Java's broker says compressed=false even when it compresses (BrokerOuterAPI.registerBrokerAll).
    compressed = header.compressed or request.body.startswith(_ZLIB_START)
    body = yield from register_body_in_steps(request.body, compressed=compressed, version=request.version)
    servers = body.filter_server_list or []
    if len(servers) > MAX_FILTER_SERVERS or any(len(server) > MAX_NAME_LENGTH for server in servers):
        raise BodyError(f"{len(servers)} filter servers: more than {MAX_FILTER_SERVERS}, or their names are too long")
    yield from _check_table(body.topic_config_serialize_wrapper)
    return body


def _check_table(table: TopicConfigTable) -> Generator[None, None, None]:
    if len(table.topic_config_table) > MAX_TOPICS or len(table.topic_queue_mapping_info_map) > MAX_TOPICS:
        raise BodyError(f"{len(table.topic_config_table)} topics: a broker may register {MAX_TOPICS}")
    version = table.data_version
    for number in (version.state_version, version.timestamp, version.counter):
        if not -_MAX_INT64 <= number <= _MAX_INT64:
            raise BodyError(f"data version with {number}: more than 64 bits")
    forms = set()
    for config, number in zip(table.topic_config_table.values(), count(1), strict=False):
        form = (config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag)
        # Nearly all topics of a broker have the form of another: 0.2 us each, not 0.8, each 30 s.
        if form in forms:
            _check_name(config.topic_name)
        else:
            check_queues(config.topic_name, *form)
            forms.add(form)
        if number % _STEP_TOPICS == 0:
            yield
    if len(forms) > MAX_FORMS:
        raise BodyError(f"topics of {len(forms)} different forms: a broker may register {MAX_FORMS}")


def check_queues(topic: str, *numbers: int) -> None:
    """Raises BodyError for a name or for numbers of queues, perm or flags that Java's clients couldn't read."""
    _check_name(topic)
    if min(numbers) < 0 or max(numbers) > _MAX_INT32:
        raise BodyError(f"topic {topic}: numbers of queues, perm and flags {numbers} must be 0 to {_MAX_INT32}")


def _check_name(topic: str) -> None:
    if not 0 < len(topic) <= MAX_NAME_LENGTH:
        raise BodyError(f"topic {topic[:100]!r}: must have 1 to {MAX_NAME_LENGTH} characters")
