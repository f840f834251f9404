"""Concurrent requests for the same table share one encoded response."""

from __future__ import annotations

from typing import cast

import pytest
from broker_support import objects_in_memory

from gantrymq.broker.tables.table_response import TableEncoding, TableResponse
from gantrymq.protocol.bodies.topic_config import TopicConfig, TopicConfigTable
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.remoting.long_requests import Steps


def finished(steps: Steps) -> RemotingCommand:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(RemotingCommand, end.value)


def topics(response: RemotingCommand) -> list[str]:
    return list(decode_json(response.body, TopicConfigTable).topic_config_table)


def new_table() -> TopicConfigTable:
    names = [f"topic-{number}" for number in range(3000)]
    return TopicConfigTable({name: TopicConfig(name) for name in names})


def test_requests_at_the_same_time_get_the_same_bytes() -> None:
    response, table = TableResponse(), new_table()
    one = response.steps(table, {"n": "1"})
    next(one)
    next(one)
    other = response.steps(table, {"n": "2"})
    next(other)
    first, second = finished(one), finished(other)
    assert first.body is second.body
    assert (first.ext_fields, second.ext_fields) == ({"n": "1"}, {"n": "2"})
    assert topics(first) == list(table.topic_config_table)


def test_a_request_after_a_change_sees_it() -> None:
    response, table = TableResponse(), new_table()
    before = response.steps(table, {})
    next(before)
    table.topic_config_table["new"] = TopicConfig("new")
    del table.topic_config_table["topic-2999"]
    table.data_version.advance()
    after = response.steps(table, {})
    next(after)
    assert "new" not in topics(finished(before))
    found = topics(finished(after))
    assert "new" in found
    assert "topic-2999" not in found


def test_an_error_of_the_encoder_fails_every_request_that_shares_it() -> None:
    """None of these requests gets the part that was encoded before the error."""
    response, table = TableResponse(), new_table()
    good = table.topic_config_table["topic-2500"]
    table.topic_config_table["topic-2500"] = object()  # type: ignore[assignment]
    one, other = response.steps(table, {}), response.steps(table, {})
    next(one)
    next(other)
    for steps in (one, other):
        with pytest.raises(TypeError):
            finished(steps)
    table.topic_config_table["topic-2500"] = good
    assert topics(finished(response.steps(table, {}))) == list(table.topic_config_table)


def test_a_request_that_is_given_up_leaves_nothing() -> None:
    response, table = TableResponse(), new_table()
    before = objects_in_memory(TableEncoding)
    steps = response.steps(table, {})
    for _ in range(3):
        next(steps)
    assert len(objects_in_memory(TableEncoding)) == len(before) + 1
    steps.close()
    assert objects_in_memory(TableEncoding) == before
