"""`minInSyncReplicas`: no transaction is committed while too few brokers are in sync.

It can be rolled back, or committed later.
"""

from __future__ import annotations

from pathlib import Path

from controlled_support import ControlledBrokers
from half_range_support import end_all, end_many, prepare_many
from test_too_few_in_sync import lacks_replicas
from transaction_support import Producer, all_messages
from wait_until import until

from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.sys_flag import TRANSACTION_ROLLBACK

TOO_FEW = (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")


def said(answer: RemotingCommand) -> tuple[int, str | None]:
    return answer.code, answer.remark


async def test_a_commit_is_refused(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path, 2) as replicas:
        await replicas.all_in_sync()
        broker = replicas.brokers[1]
        producer = await Producer().connect(broker.port)
        single, undone = await producer.prepare("orders", b"single"), await producer.prepare("orders", b"undone")
        ranges = [await prepare_many(producer, "orders", [b"a", b"b"])]
        others = [await prepare_many(producer, "orders", [b"c", b"d"])]
        # Timeout of a response that waits for slaves, in milliseconds.
        broker.config.replication.slave_timeout = 500
        await replicas.stop(2)
        await lacks_replicas(replicas)
        end = broker.store.queue("orders", 0).max_offset
        assert said(await producer.end(single)) == TOO_FEW
        assert said(await end_many(producer, ranges)) == TOO_FEW
        assert broker.store.queue("orders", 0).max_offset == end
        assert (await producer.end(undone, TRANSACTION_ROLLBACK)).code == ResponseCode.SUCCESS
        broker.config.replication.slave_timeout = 10_000
        await replicas.start(2)
        await replicas.all_in_sync()
        # The master gets the new in-sync set after the controller.
        await until(lambda: not broker.features.waits.flush.lacks_replicas)
        assert (await producer.end(single)).code == ResponseCode.SUCCESS
        await end_all(producer, ranges)
        await end_all(producer, others, TRANSACTION_ROLLBACK)
        assert [message.body for message in await all_messages(producer, "orders")] == [b"single", b"a", b"b"]
        await producer.client.close()
