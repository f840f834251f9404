"""Topic configurations, their version, and the body of a broker's registration.

Source: common/TopicConfig, common/constant/PermName, remoting/protocol/DataVersion,
remoting/protocol/body/RegisterBrokerBody and TopicConfigSerializeWrapper.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from struct import Struct
from struct import error as StructError
from typing import Any, TypeVar

import msgspec

from gantrymq.errors import BodyError
from gantrymq.protocol.codes import VERSION_3_0_11, VERSION_5_0_0
from gantrymq.protocol.fastjson import bare_keys_quoted_in_steps, decode_json, encode_json
from gantrymq.protocol.json_header import UNREADABLE_JSON
from gantrymq.protocol.steps import finish
from gantrymq.system.clock import now_ms

PERM_PRIORITY = 8
PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1

#: Largest registration, also after decompression, in bytes: the size of a frame. 100,000 topics take 16 MB of JSON, or
#: 4 MB in the compact form, before its compression.
MAX_REGISTER_BODY = 16 * 1024 * 1024
#: Largest topic with its attributes, and largest mapping of a static topic, in bytes.
MAX_TOPIC_BYTES = 64 * 1024
MAX_MAPPING_BYTES = 256 * 1024

_I32 = Struct(">i")
#: Bytes decoded per step, which takes less than 1 ms. A large topic or mapping is one step.
_STEP_BYTES = 64 * 1024


class DataVersion(msgspec.Struct, rename="camel", order=False):
    """The version of a state, such as all topics of a broker. `timestamp` is in ms."""

    state_version: int = 0
    timestamp: int = msgspec.field(default_factory=now_ms)
    counter: int = 0

    def advance(self) -> None:
        """Advances to the next version. Called when the state changes."""
        self.timestamp = now_ms()
        self.counter += 1


class TopicConfig(msgspec.Struct, rename="camel"):
    """The configuration of a topic on one broker."""

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
    """All topics of a broker (`TopicConfigAndMappingSerializeWrapper`). topics.json has the same content."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_queue_mapping_info_map: dict[str, dict[str, Any]] = {}


class _RawTopicConfigTable(msgspec.Struct, rename="camel"):
    """A TopicConfigTable with undecoded entries. To find the entries takes a tenth of the time of decoding them."""

    topic_config_table: dict[str, msgspec.Raw] | None = None
    data_version: msgspec.Raw = msgspec.Raw(b"null")
    topic_queue_mapping_info_map: dict[str, msgspec.Raw] | None = None


class _RawRegisterBrokerBody(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _RawTopicConfigTable
    filter_server_list: list[str] | None = None


_Raw = TypeVar("_Raw", _RawTopicConfigTable, _RawRegisterBrokerBody)
_topic_decoder = msgspec.json.Decoder(TopicConfig, strict=False)


class RegisterBrokerBody(msgspec.Struct, rename="camel"):
    """The body of REGISTER_BROKER."""

    topic_config_serialize_wrapper: TopicConfigTable
    filter_server_list: list[str] | None = []


def encode_register_body(body: RegisterBrokerBody, *, compress: bool = False) -> bytes:
    """Returns JSON, or a zlib stream of length-prefixed parts, which the header announces with `compressed=true`."""
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
    """Decodes the registration of a broker with the MQVersion `version`. Raises BodyError."""
    return finish(register_body_in_steps(data, compressed=compressed, version=version))


def register_body_in_steps(data: bytes, *, compressed: bool, version: int) -> Generator[None, None, RegisterBrokerBody]:
    """Runs `decode_register_body` in steps of about 1 ms. The first step can take 25 ms, for 16 MiB of JSON."""
    if len(data) > MAX_REGISTER_BODY:
        raise BodyError(f"registration of {len(data)} bytes: larger than {MAX_REGISTER_BODY} bytes")
    if version < VERSION_3_0_11:
        return RegisterBrokerBody((yield from _table((yield from _decode_raw(data, _RawTopicConfigTable)))), None)
    if not compressed:
        raw = yield from _decode_raw(data, _RawRegisterBrokerBody)
        table = yield from _table(raw.topic_config_serialize_wrapper)
        return RegisterBrokerBody(table, raw.filter_server_list or [])
    plain = yield from _decompress(data)
    return (yield from _decode_parts(plain, version))


def _decode_raw(data: bytes, raw_type: type[_Raw]) -> Generator[None, None, _Raw]:
    try:
        return msgspec.json.decode(data, type=raw_type, strict=False)
    except UNREADABLE_JSON:
        # The JSON may have fastjson's form, with unquoted numeric keys.
        pass
    quoted = yield from bare_keys_quoted_in_steps(data)
    try:
        return msgspec.json.decode(quoted, type=raw_type, strict=False)
    except UNREADABLE_JSON as e:
        name = raw_type.__name__.removeprefix("_Raw")
        raise BodyError(f"registration of {len(data)} bytes is no {name} in JSON: {e}") from e


def _table(raw: _RawTopicConfigTable) -> Generator[None, None, TopicConfigTable]:
    table = TopicConfigTable()
    if (version := _json_of(raw.data_version)) is not None:
        table.data_version = decode_json(version, DataVersion)
    done = 0
    for name, part in (raw.topic_config_table or {}).items():
        if (config := _json_of(part)) is not None:
            table.topic_config_table[name] = _topic_from_json(config)
            done += len(config)
        if done > _STEP_BYTES:
            done = 0
            yield
    for name, part in (raw.topic_queue_mapping_info_map or {}).items():
        if (mapping := _json_of(part)) is not None:
            table.topic_queue_mapping_info_map[name] = _mapping_from_json(mapping)
        yield
    return table


def _json_of(raw: msgspec.Raw) -> bytes | None:
    """Returns the bytes of a JSON value, or None for null."""
    data = bytes(raw)
    return data if data != b"null" else None


def _topic_from_json(data: bytes) -> TopicConfig:
    if len(data) > MAX_TOPIC_BYTES:
        raise BodyError(f"topic of {len(data)} bytes: larger than {MAX_TOPIC_BYTES} bytes")
    try:
        return _topic_decoder.decode(data)
    except UNREADABLE_JSON:
        return decode_json(data, TopicConfig)


def _mapping_from_json(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_MAPPING_BYTES:
        raise BodyError(f"mapping of {len(data)} bytes: larger than {MAX_MAPPING_BYTES} bytes")
    return decode_json(data, dict[str, Any])


def _decompress(data: bytes) -> Generator[None, None, bytes]:
    inflater = zlib.decompressobj()
    plain = bytearray()
    try:
        for start in range(0, len(data), _STEP_BYTES):
            rest = data[start : start + _STEP_BYTES]
            while rest:
                plain += inflater.decompress(rest, 4 * _STEP_BYTES)
                rest = inflater.unconsumed_tail
                if len(plain) > MAX_REGISTER_BODY:
                    raise BodyError(
                        f"registration of {len(data)} bytes decompresses to more: larger than {MAX_REGISTER_BODY} bytes"
                    )
                yield
    except zlib.error as e:
        raise BodyError(f"registration of {len(data)} bytes doesn't decompress: {e}") from e
    if not inflater.eof:
        raise BodyError(f"registration of {len(data)} bytes is cut off")
    return bytes(plain)


def _decode_parts(plain: bytes, version: int) -> Generator[None, None, RegisterBrokerBody]:
    pos = 0

    def number() -> int:
        nonlocal pos
        (n,) = _I32.unpack_from(plain, pos)
        pos += 4
        if not 0 <= n <= len(plain):
            raise BodyError(f"length {n} at {pos - 4} in a registration of {len(plain)} bytes")
        return int(n)

    def part(most: int) -> bytes:
        nonlocal pos
        length = number()
        if pos + length > len(plain):
            raise BodyError(f"part of {length} bytes at {pos} in a registration of {len(plain)} bytes")
        if length > most:
            raise BodyError(f"part of {length} bytes at {pos}: larger than {most} bytes")
        pos += length
        return plain[pos - length : pos]

    try:
        table = TopicConfigTable(data_version=decode_json(part(MAX_TOPIC_BYTES), DataVersion))
        topics = table.topic_config_table
        next_step = 0
        for _ in range(number()):
            config = _topic_from_text(part(MAX_TOPIC_BYTES).decode())
            topics[config.topic_name] = config
            # Each topic costs as much time as about 100 bytes, in addition to its name.
            next_step += len(config.topic_name) + 100
            if next_step > _STEP_BYTES:
                next_step = 0
                yield
        filter_servers = decode_json(part(MAX_MAPPING_BYTES), list[str])
        if version >= VERSION_5_0_0:
            for _ in range(number()):
                mapping = _mapping_from_json(part(MAX_MAPPING_BYTES))
                table.topic_queue_mapping_info_map[str(mapping.get("topic"))] = mapping
                yield
    except (StructError, UnicodeDecodeError) as e:
        raise BodyError(f"registration of {len(plain)} bytes can't be read at {pos}: {e}") from e
    return RegisterBrokerBody(table, filter_servers)


def _prefixed(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _topic_text(config: TopicConfig) -> str:
    """Returns the text form of a topic (`TopicConfig.encode`): fields separated by spaces, then attributes as JSON.

    Empty attributes are omitted, because NameServers before 5.0 accept only five fields.
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
