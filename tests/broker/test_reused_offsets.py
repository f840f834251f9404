"""A queue that has lost its end gives its offsets again; who has had what was lost doesn't skip what comes."""

from __future__ import annotations

import pytest
from administration import beat, create_group
from broker_support import Peer

from gantrymq.broker.broker import Broker
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.offset import ResetOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.sys_flag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION


@pytest.fixture
async def recovered(peer: Peer, broker: Broker) -> Broker:
    """A crash has left one message in a queue, whose group had had three; then two came."""
    for body in (b"0", b"1", b"2"):
        await peer.send("orders", body)
    broker.offsets.commit("consumers", "orders", 0, 1)
    broker.store.queue("orders", 0).recovered_end = 1
    return broker


async def test_who_is_ahead_goes_back_to_where_the_queue_was_recovered(recovered: Broker, peer: Peer) -> None:
    # Its own offsets may have come before it asks.
    recovered.offsets.commit("consumers", "orders", 0, 3)
    answer = await peer.pull("orders", 3)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    answer = await peer.pull("orders", 1)
    assert [message.body for message in decode_messages(answer.body)] == [b"1", b"2"]
    # What it has been given it may go on from, and from no more than that.
    assert (await peer.pull("orders", 3)).code == ResponseCode.PULL_NOT_FOUND
    await peer.send("orders", b"3")
    assert (await peer.pull("orders", 4)).ext_fields["nextBeginOffset"] == "3"


async def test_who_goes_back_begins_with_what_is_not_dealt_with(recovered: Broker, peer: Peer) -> None:
    """It has pulled up to 3 and handled nothing: what it has pulled before where the queue ended, it drops, too."""
    recovered.offsets.commit("consumers", "orders", 0, 0)
    assert (await peer.pull("orders", 3)).ext_fields["nextBeginOffset"] == "0"


async def test_what_one_has_dealt_with_is_not_hidden_by_a_commit_of_what_was_lost(
    recovered: Broker, peer: Peer
) -> None:
    """One of the group has pulled all there is and dealt with half; another comes that knows the queue from before."""
    await peer.pull("orders", 1)
    recovered.offsets.commit("consumers", "orders", 0, 2)
    flags = PULL_COMMIT_OFFSET | PULL_SUBSCRIPTION
    answer = await peer.pull("orders", 5, sys_flag=flags, commit_offset=5)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
    header = UpdateConsumerOffsetRequestHeader(consumer_group="consumers", topic="orders", queue_id=0, commit_offset=5)
    await beat(peer, "member")
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == ResponseCode.SUCCESS
    assert recovered.offsets.query("consumers", "orders", 0) == 2
    header.commit_offset = 3
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert recovered.offsets.query("consumers", "orders", 0) == 3


async def test_a_tool_that_sets_the_offset_of_a_group_without_members_is_told(recovered: Broker, peer: Peer) -> None:
    await create_group(peer)
    header = UpdateConsumerOffsetRequestHeader(consumer_group="consumers", topic="orders", queue_id=0, commit_offset=3)
    answer = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "consumers hasn't got to offset 3 since: reset its offset instead" in (answer.remark or "")
    assert recovered.offsets.query("consumers", "orders", 0) == 1


async def test_an_administrator_who_skips_messages_has_the_last_word(recovered: Broker, peer: Peer) -> None:
    header = ResetOffsetRequestHeader(
        topic="orders", group="consumers", queue_id=0, offset=3, timestamp=-1, is_force=True
    )
    assert (await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).code == ResponseCode.SUCCESS
    assert (await peer.pull("orders", 3)).code == ResponseCode.PULL_NOT_FOUND


async def test_a_group_that_has_nothing_committed_begins_where_it_likes(recovered: Broker, peer: Peer) -> None:
    assert (await peer.pull("orders", 3, group="new")).code == ResponseCode.PULL_NOT_FOUND


async def test_queues_that_have_lost_nothing_are_as_ever(recovered: Broker, peer: Peer) -> None:
    recovered.store.queue("orders", 0).recovered_end = None
    assert (await peer.pull("orders", 3)).code == ResponseCode.PULL_NOT_FOUND


async def test_it_ends(recovered: Broker, peer: Peer) -> None:
    """Who seeks forward later on is not held back."""
    pulling = recovered._pulling
    assert pulling._reused is not None
    pulling._reused.until = 0.0
    assert (await peer.pull("orders", 3)).code == ResponseCode.PULL_NOT_FOUND
    assert pulling._reused is None
