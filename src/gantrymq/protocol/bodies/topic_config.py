"""TopicConfig, its version, and the body with which a broker registers its topics.

Sources: common/TopicConfig, common/constant/PermName, remoting/protocol/DataVersion,
remoting/protocol/body/RegisterBrokerBody and TopicConfigSerializeWrapper.
"""

from __future__ import annotations

import zlib
from struct import Struct
from struct import error as StructError
from typing import Any

import msgspec

from gantrymq.clock import now_ms
from gantrymq.errors import BodyError
from gantrymq.protocol.codes import VERSION_3_0_11, VERSION_5_0_0
from gantrymq.protocol.fastjson import decode_json, encode_json

PERM_PRIORITY = 8
PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1

#: A decompressed registration may not be larger: 20,000 topics with long names take 3 MiB.
MAX_REGISTER_BODY = 64 * 1024 * 1024

_I32 = Struct(">i")


class DataVersion(msgspec.Struct, rename="camel", order=False):
    """Says which of two states is newer; `timestamp` in ms."""

    state_version: int = 0
    timestamp: int = msgspec.field(default_factory=now_ms)
    counter: int = 0

    def advance(self) -> None:
        """The next version, made whenever the state changes."""
        self.timestamp = now_ms()
        self.counter += 1


class TopicConfig(msgspec.Struct, rename="camel"):
    """One topic on one broker."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)


class TopicConfigTable(msgspec.Struct, rename="camel"):
    """All topics of a broker (`TopicConfigAndMappingSerializeWrapper`); also the form of topics.json."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_queue_mapping_info_map: dict[str, dict[str, Any]] = {}


class RegisterBrokerBody(msgspec.Struct, rename="camel"):
    """The body of REGISTER_BROKER."""

    topic_config_serialize_wrapper: TopicConfigTable
    filter_server_list: list[str] | None = []


def encode_register_body(body: RegisterBrokerBody, *, compress: bool = False) -> bytes:
    """JSON, or the zlib stream of length-prefixed parts that `compressed=true` announces."""
    if not compress:
        return encode_json(body)
    table = body.topic_config_serialize_wrapper
    parts = [_prefixed(encode_json(table.data_version)), _I32.pack(len(table.topic_config_table))]
    parts += [_prefixed(_topic_text(config).encode()) for config in table.topic_config_table.values()]
    parts.append(_prefixed(encode_json(body.filter_server_list or [])))
    parts.append(_I32.pack(len(table.topic_queue_mapping_info_map)))
    parts += [_prefixed(encode_json(mapping)) for mapping in table.topic_queue_mapping_info_map.values()]
    return zlib.compress(b"".join(parts), 9)


def decode_register_body(data: bytes, *, compressed: bool, version: int) -> RegisterBrokerBody:
    """The registration of a broker of MQVersion `version`. Raises BodyError."""
    if version < VERSION_3_0_11:
        return RegisterBrokerBody(decode_json(data, TopicConfigTable), None)
    if not compressed:
        return decode_json(data, RegisterBrokerBody)
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, MAX_REGISTER_BODY)
    except zlib.error as e:
        raise BodyError(f"registration of {len(data)} bytes doesn't decompress: {e}") from e
    if not inflater.eof:
        raise BodyError(f"registration of {len(data)} bytes is cut off or larger than {MAX_REGISTER_BODY} bytes")
    return _decode_parts(plain, version)


def _decode_parts(plain: bytes, version: int) -> RegisterBrokerBody:
    pos = 0

    def number() -> int:
        nonlocal pos
        (n,) = _I32.unpack_from(plain, pos)
        pos += 4
        if not 0 <= n <= len(plain):
            raise BodyError(f"length {n} at {pos - 4} in a registration of {len(plain)} bytes")
        return int(n)

    def part() -> bytes:
        nonlocal pos
        length = number()
        if pos + length > len(plain):
            raise BodyError(f"part of {length} bytes at {pos} in a registration of {len(plain)} bytes")
        pos += length
        return plain[pos - length : pos]

    try:
        table = TopicConfigTable(data_version=decode_json(part(), DataVersion))
        topics = table.topic_config_table
        for _ in range(number()):
            config = _topic_from_text(part().decode())
            topics[config.topic_name] = config
        filter_servers = decode_json(part(), list[str])
        if version >= VERSION_5_0_0:
            for _ in range(number()):
                mapping = decode_json(part(), dict[str, Any])
                table.topic_queue_mapping_info_map[str(mapping.get("topic"))] = mapping
    except (StructError, UnicodeDecodeError) as e:
        raise BodyError(f"registration of {len(plain)} bytes can't be read at {pos}: {e}") from e
    return RegisterBrokerBody(table, filter_servers)


def _prefixed(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _topic_text(config: TopicConfig) -> str:
    """`TopicConfig.encode`: fields separated by spaces, attributes as JSON at the end.

    NameServers before 5.0 take five fields only, so empty attributes are left out.
    """
    text = (
        f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums} {config.perm} "
        f"{config.topic_filter_type} "
    )
    return text + encode_json(config.attributes).decode() if config.attributes else text


def _topic_from_text(text: str) -> TopicConfig:
    fields = text.split(" ", 5)
    try:
        return TopicConfig(
            fields[0],
            int(fields[1]),
            int(fields[2]),
            int(fields[3]),
            fields[4],
            attributes=decode_json(fields[5].encode(), dict[str, str]) if len(fields) > 5 and fields[5].strip() else {},
        )
    except (IndexError, ValueError) as e:
        raise BodyError(f"topic {text[:200]!r} is not 'name readQueues writeQueues perm filterType'") from e
