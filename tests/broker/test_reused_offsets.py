"""A queue that lost its end reuses the lost offsets.

Consumers that already received the lost messages must not skip the new ones.
"""

from __future__ import annotations

import pytest
from administration import beat, create_group
from broker_support import Peer

from gantrymq.broker.broker import Broker
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.offset import ResetOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.private_fields import RECOVERED_END_FIELD, RECOVERY_FIELD
from gantrymq.protocol.sys_flag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION


@pytest.fixture
async def recovered(peer: Peer, broker: Broker) -> Broker:
    """A queue after a crash, with one message, followed by two new ones.

    Its group had consumed three messages before the crash.
    """
    for body in (b"0", b"1", b"2"):
        await peer.send("orders", body)
    broker.offsets.commit("consumers", "orders", 0, 1)
    broker.store.queue("orders", 0).recovered_end = 1
    return broker


async def test_a_group_beyond_the_recovered_end_goes_back_to_it(recovered: Broker, peer: Peer) -> None:
    # The commit of the group's offset can arrive before its pull.
    recovered.offsets.commit("consumers", "orders", 0, 3)
    answer = await peer.pull("orders", 3)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    answer = await peer.pull("orders", 1)
    assert [message.body for message in decode_messages(answer.body)] == [b"1", b"2"]
    # The consumer can continue from the messages that it received, and not beyond them.
    assert (await peer.pull("orders", 3)).code == ResponseCode.PULL_NOT_FOUND
    await peer.send("orders", b"3")
    assert (await peer.pull("orders", 4)).ext_fields["nextBeginOffset"] == "3"


async def test_a_group_goes_back_to_its_first_unhandled_message(recovered: Broker, peer: Peer) -> None:
    """The group pulled up to offset 3 and processed nothing, so it restarts at its committed offset, 0.

    On a reset, the consumer also drops the messages that it pulled below the recovered end.
    """
    recovered.offsets.commit("consumers", "orders", 0, 0)
    assert (await peer.pull("orders", 3)).ext_fields["nextBeginOffset"] == "0"


async def test_a_commit_of_lost_messages_hides_no_progress(recovered: Broker, peer: Peer) -> None:
    """A member that commits an offset from before the crash does not skip messages for the group.

    Another member pulled all new messages and processed half of them.
    """
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


async def test_a_tool_that_commits_lost_messages_gets_an_error(recovered: Broker, peer: Peer) -> None:
    await create_group(peer)
    header = UpdateConsumerOffsetRequestHeader(consumer_group="consumers", topic="orders", queue_id=0, commit_offset=3)
    answer = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "consumers hasn't got to offset 3 since: reset its offset instead" in (answer.remark or "")
    assert recovered.offsets.query("consumers", "orders", 0) == 1


async def test_a_reset_by_an_administrator_is_valid(recovered: Broker, peer: Peer) -> None:
    header = ResetOffsetRequestHeader(
        topic="orders", group="consumers", queue_id=0, offset=3, timestamp=-1, is_force=True
    )
    assert (await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).code == ResponseCode.SUCCESS
    assert (await peer.pull("orders", 3)).code == ResponseCode.PULL_NOT_FOUND


async def test_a_group_without_a_committed_offset_starts_anywhere(recovered: Broker, peer: Peer) -> None:
    assert (await peer.pull("orders", 3, group="new")).code == ResponseCode.PULL_NOT_FOUND


async def test_a_queue_that_lost_nothing(recovered: Broker, peer: Peer) -> None:
    recovered.store.queue("orders", 0).recovered_end = None
    assert (await peer.pull("orders", 3)).code == ResponseCode.PULL_NOT_FOUND


async def test_the_checks_end(recovered: Broker, peer: Peer) -> None:
    """The special case ends after some time. Then a consumer can seek forward again."""
    pulling = recovered.features.pulling
    assert pulling.reused_offsets is not None
    pulling.reused_offsets.until = 0.0
    assert (await peer.pull("orders", 3)).code == ResponseCode.PULL_NOT_FOUND
    assert pulling.reused_offsets is None


async def test_a_response_has_the_recovered_end(recovered: Broker, peer: Peer) -> None:
    """Consumers know what they received before the crash, also if their group has committed nothing."""
    response = await peer.pull("orders", 3, group="new")
    recovery = response.ext_fields[RECOVERY_FIELD]
    assert response.ext_fields[RECOVERED_END_FIELD] == "1"
    response = await peer.pull("orders", 1)
    assert (response.ext_fields[RECOVERY_FIELD], response.ext_fields[RECOVERED_END_FIELD]) == (recovery, "1")
    recovered.store.queue("orders", 0).recovered_end = None
    assert RECOVERY_FIELD not in (await peer.pull("orders", 1)).ext_fields
