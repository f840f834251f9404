"""What a checkpoint says of a stream's place: of this version, of earlier ones, and of none."""

from __future__ import annotations

import json

import pytest

from gantrymq.errors import ConfigError
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.offsets import FirstMessage
from gantrymq.spark.stream_place import Began, StreamPlace

QUEUE = MessageQueue("t", "broker-a", 0)


def test_there_and_back() -> None:
    first, began = FirstMessage(1, 1767225600000), Began(frozenset("ab"), None)
    place = StreamPlace(
        {QUEUE: 7}, {QUEUE: 3}, {QUEUE: first}, began, {QUEUE: 1767225700000}, QUEUE, {QUEUE: [0, 5, 1]}
    )
    assert StreamPlace.from_json(json.loads(json.dumps(place.to_json()))) == place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"t": {"broker-a:0": 7}}', StreamPlace({QUEUE: 7})),
        ('{"t": {"broker-a:0": 7}, "$start": {"t": {"broker-a:0": 3}}}', StreamPlace({QUEUE: 7}, {QUEUE: 3})),
        ("{}", StreamPlace({})),
    ],
)
def test_checkpoints_of_earlier_versions(text: str, place: StreamPlace) -> None:
    assert StreamPlace.from_json(json.loads(text)) == place


def test_a_checkpoint_of_a_later_version_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has \$epoch, .* a later version of gantrymq"):
        StreamPlace.from_json({"t": {"broker-a:0": 7}, "$epoch": 3})


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
        StreamPlace.from_json(json.loads(text))
