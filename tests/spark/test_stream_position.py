"""Tests of stream positions in checkpoints: of this version, of earlier ones, and invalid ones."""

from __future__ import annotations

import json

import pytest

from gantrymq.arrow.offsets import FirstMessage
from gantrymq.arrow.stream_position import StreamPosition, StreamStart
from gantrymq.errors import ConfigError
from gantrymq.protocol.message import MessageQueue

QUEUE = MessageQueue("t", "broker-a", 0)


def test_there_and_back() -> None:
    first, began = FirstMessage(1, 1767225600000), StreamStart(frozenset("ab"), None)
    position = StreamPosition(
        {QUEUE: 7}, {QUEUE: 3}, {QUEUE: first}, began, {QUEUE: 1767225700000}, QUEUE, {QUEUE: [0, 5, 1]}
    )
    assert StreamPosition.from_json(json.loads(json.dumps(position.to_json()))) == position


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('{"t": {"broker-a:0": 7}}', StreamPosition({QUEUE: 7})),
        ('{"t": {"broker-a:0": 7}, "$start": {"t": {"broker-a:0": 3}}}', StreamPosition({QUEUE: 7}, {QUEUE: 3})),
        ("{}", StreamPosition({})),
    ],
)
def test_checkpoints_of_earlier_versions(text: str, position: StreamPosition) -> None:
    assert StreamPosition.from_json(json.loads(text)) == position


def test_a_checkpoint_of_a_later_version_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has \$epoch, .* a later version of gantrymq"):
        StreamPosition.from_json({"t": {"broker-a:0": 7}, "$epoch": 3})


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"logOffset": 5}',
        '{"t": {"broker-a:0": -1}}',
        '{"t": {"broker-a:0": 7}, "$start": {"t": {"broker-a:0": -2}}}',
        '{"t": {"broker-a:0": 7}, "$start": []}',
        '{"t": {"broker-a:0": 7}, "$first": {"t": {"broker-a:0": ["x", null]}}}',
        '{"t": {"broker-a:0": 7}, "$first": {"t": {"broker-a:0": [1]}}}',
        '{"t": {"broker-a:0": 7}, "$last": {"t": {"broker-a:0": "x"}}}',
        '{"t": {"broker-a:0": 7}, "$began": {"brokers": ["broker-a"], "since": "x"}}',
        '{"t": {"broker-a:0": 7}, "$began": {"brokers": ["broker-a"]}}',
        '{"t": {"broker-a:0": 7}, "$turn": {"t": 0}}',
        '{"t": {"broker-a:0": 7}, "$plan": {"t": {"broker-a:0": 0}}}',
        '{"t": {"broker-a:0": 7}, "$plan": {"t": {"broker-a:0": ["x"]}}}',
        '{"t": {"broker-a:0": 9223372036854775808}}',
    ],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        StreamPosition.from_json(json.loads(text))
