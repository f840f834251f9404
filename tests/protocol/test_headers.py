"""Tests of typed headers: round trips in both encodings, and HeaderError with the field's name for invalid values."""

from __future__ import annotations

import importlib
import pkgutil
import types
import typing
from struct import pack
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.errors import HeaderError
from gantrymq.protocol import headers
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.headers.offset import QueueRequestHeader
from gantrymq.protocol.headers.send import SendMessageRequestHeader
from gantrymq.protocol.java import Int32, Int64

#: The header classes of all modules of `headers`.
HEADERS = [
    value
    for module in pkgutil.iter_modules(headers.__path__)
    for value in vars(importlib.import_module(f"gantrymq.protocol.headers.{module.name}")).values()
    if isinstance(value, type) and issubclass(value, Header) and value is not Header
]
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(min_size=1),
    bool: st.booleans(),
    Int32: st.integers(-(2**31), 2**31 - 1),
    Int64: st.integers(-(2**63), 2**63 - 1),
    int: st.integers(-(2**63), 2**63 - 1),
    type(None): st.none(),
}


def values(field_type: Any) -> st.SearchStrategy[Any]:
    if typing.get_origin(field_type) in (types.UnionType, typing.Union):
        return st.one_of([values(arg) for arg in typing.get_args(field_type)])
    return VALUES[field_type]


def header_strategy(header_type: type[Header]) -> st.SearchStrategy[Header]:
    return st.builds(header_type, **{f.name: values(f.type) for f in msgspec.structs.fields(header_type)})


def received(command: RemotingCommand) -> RemotingCommand:
    (got,) = FrameReader().feed(command.encode())
    return got


def json_command(ext: bytes) -> RemotingCommand:
    header = b'{"code":1,"extFields":' + ext + b"}"
    (command,) = FrameReader().feed(pack(">iI", 4 + len(header), len(header)) + header)
    return command


def test_there_are_headers() -> None:
    assert len(HEADERS) > 60


@pytest.mark.parametrize("encoding", SerializeType)
@pytest.mark.parametrize("header_type", HEADERS)
@settings(max_examples=15)
@given(data=st.data())
def test_round_trip(header_type: type[Header], encoding: SerializeType, data: st.DataObject) -> None:
    header = data.draw(header_strategy(header_type))
    command = RemotingCommand.request(1, header)
    command.serialize_type = encoding

    got = received(command)

    assert got.read_header(header_type) == header
    assert got.ext_fields == command.ext_fields
    assert got.read_header(header_type) == header  # The second read uses the decoded dictionary.


@pytest.mark.parametrize("encoding", SerializeType)
@pytest.mark.parametrize("header_type", HEADERS)
def test_every_missing_field_is_named(header_type: type[Header], encoding: SerializeType) -> None:
    required = [field.encode_name for field in msgspec.structs.fields(header_type) if field.required]
    for missing in required:
        command = RemotingCommand.request(1, fields={name: "1" for name in required if name != missing})
        command.serialize_type = encoding
        with pytest.raises(HeaderError, match=rf"{header_type.__name__}: .*`{missing}`"):
            received(command).read_header(header_type)


@pytest.mark.parametrize("encoding", SerializeType)
@pytest.mark.parametrize("header_type", HEADERS)
def test_every_wrong_type_is_named(header_type: type[Header], encoding: SerializeType) -> None:
    fields = msgspec.structs.fields(header_type)
    good = {field.encode_name: "true" if field.type is bool else "1" for field in fields if field.required}
    for field in fields:
        if field.type is str or field.type == (str | None):
            continue
        command = RemotingCommand.request(1, fields=good | {field.encode_name: "maybe"})
        command.serialize_type = encoding
        with pytest.raises(HeaderError, match=rf"{header_type.__name__}: .*\$\.{field.encode_name}"):
            received(command).read_header(header_type)


@pytest.mark.parametrize("number", ["2147483648", "-2147483649", "9" * 30])
def test_numbers_beyond_javas_int(number: str) -> None:
    command = RemotingCommand.request(1, fields={"topic": "t", "queueId": number})
    with pytest.raises(HeaderError, match="queueId"):
        received(command).read_header(QueueRequestHeader)


def test_numbers_that_are_no_strings() -> None:
    # The Go and C++ clients send numbers and booleans as JSON values, and numbers for some string fields.
    command = json_command(b'{"topic":5,"queueId":3,"other":{"a":[true]}}')

    assert command.read_header(QueueRequestHeader) == QueueRequestHeader(topic="5", queue_id=3)


@pytest.mark.parametrize("ext", [b"null", b"{}"])
def test_no_fields_at_all(ext: bytes) -> None:
    with pytest.raises(HeaderError, match="topic"):
        json_command(ext).read_header(QueueRequestHeader)
    with pytest.raises(HeaderError, match="topic"):
        received(RemotingCommand.request(1)).read_header(QueueRequestHeader)


@pytest.mark.parametrize("ext", [b'{"topic":"\xff","queueId":"1"}', b"[]", b'"x"', b"7"])
def test_fields_that_cannot_be_read(ext: bytes) -> None:
    with pytest.raises(HeaderError):
        json_command(ext).read_header(QueueRequestHeader)


def test_the_words_of_java() -> None:
    fields = RemotingCommand.request(
        1,
        SendMessageRequestHeader(
            producer_group="g",
            topic="t",
            default_topic="d",
            default_topic_queue_nums=4,
            queue_id=0,
            sys_flag=0,
            born_timestamp=1,
            flag=0,
            unit_mode=False,
            batch=True,
        ),
        fields={"extra": "x"},
    ).ext_fields

    assert fields["unitMode"] == "false"
    assert fields["batch"] == "true"
    assert fields["defaultTopicQueueNums"] == "4"
    assert fields["extra"] == "x"
    assert "reconsumeTimes" not in fields
