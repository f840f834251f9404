"""Apache's transactional producer with both brokers, and pending half messages that move to the other broker."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from programs import Sent, _lines, _run, consume
from servers import gantry_broker, gantry_namesrv, java_broker

pytestmark = pytest.mark.interop(feature="transactions", clients="java", servers="{kind}")

#: The first check follows 1 s after the send, further checks every 2 s.
QUICK_CHECKS = {"transactionTimeOut": 1000, "transactionCheckInterval": 2000, "transactionOpBatchInterval": 500}
#: Properties that the consumer of a committed message sees with either broker.
COMMITTED_PROPERTIES = {
    *("CLUSTER", "CONSUME_START_TIME", "KEYS", "MAX_OFFSET", "MIN_OFFSET", "PGROUP", "TAGS", "TRAN_MSG", "UNIQ_KEY"),
    *("MSG_REGION", "TRACE_ON", "WAIT", "__transactionId__", "check", "local"),
}
BROKERS = {"gantry": gantry_broker, "java": java_broker}


def message(name: str, local: str, check: str = "UNKNOW") -> Sent:
    return Sent(name.encode(), tags="t", keys=name, properties=(("local", local), ("check", check)))


def transact(
    namesrv: str, topic: str, messages: list[Sent], checks: int, *, header: str = "JSON"
) -> list[dict[str, Any]]:
    """Runs Apache's producer until it has responded to `checks` checks. Returns its output lines."""
    result = _run(
        "org.gantrymq.interop.TransactionProducer",
        *(namesrv, "interop_transactions", topic, str(checks), "60"),
        stdin="\n".join(m.line() for m in messages),
        serialize_type=header,
    )
    assert result.returncode == 0, result.stderr[-4000:] + result.stdout[-2000:]
    return _lines(result)


def checked(lines: list[dict[str, Any]]) -> list[str]:
    return sorted({base64.b64decode(line["checked"]["body"]).decode() for line in lines if "checked" in line})


@pytest.mark.timeout(200)
@pytest.mark.parametrize("header", ["JSON", "ROCKETMQ"])
@pytest.mark.parametrize("kind", BROKERS)
def test_ends_and_checks(kind: str, header: str, tmp_path: Path, topic: str) -> None:
    """Commits and rollbacks, immediate or after a check: the deliveries of both brokers are the same."""
    namesrv = gantry_namesrv(tmp_path / "namesrv")
    try:
        # On a busy machine, a JVM's first ends arrive more than a second after their half messages.
        broker = BROKERS[kind](tmp_path / "broker", namesrv.address, **(QUICK_CHECKS | {"transactionTimeOut": 5000}))
        try:
            messages = [
                message("committed", "COMMIT_MESSAGE"),
                message("rolled back", "ROLLBACK_MESSAGE"),
                message("committed when asked", "UNKNOW", "COMMIT_MESSAGE"),
                message("rolled back when asked", "UNKNOW", "ROLLBACK_MESSAGE"),
            ]
            lines = transact(namesrv.address, topic, messages, 2, header=header)
            assert checked(lines) == ["committed when asked", "rolled back when asked"]
            sends = [line for line in lines if "status" in line]
            assert [line["status"] for line in sends] == ["SEND_OK"] * 4
            assert all(line["transaction_id"] == line["msg_id"] for line in sends)
            received = consume(namesrv.address, topic, 2, serialize_type=header)
            by_name = {base64.b64decode(line["body"]).decode(): line for line in received}
            assert sorted(by_name) == ["committed", "committed when asked"]
            assert set(by_name["committed"]["properties"]) == COMMITTED_PROPERTIES
            assert by_name["committed"]["sys_flag"] == 8
        finally:
            broker.kill()
    finally:
        namesrv.kill()


@pytest.mark.interop(servers="{order}")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("order", ["gantry-java", "java-gantry"])
def test_pending_half_messages_change_hands(order: str, tmp_path: Path, topic: str) -> None:
    """The second broker checks exactly the half messages that the first one left open, and delivers committed ones."""
    store = tmp_path / "store"
    first, second = order.split("-")
    shared = {"storePathRootDir": store, "storePathCommitLog": store / "commitlog", "transactionOpBatchInterval": 200}
    namesrv = gantry_namesrv(tmp_path / "namesrv")
    try:
        # The first broker checks all of them once, and so stores them again.
        broker = BROKERS[first](tmp_path / "first", namesrv.address, **(QUICK_CHECKS | shared))
        try:
            ended = [message(f"ended {n}", ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE")[n % 2]) for n in range(6)]
            pending = [message(f"open {n}", "UNKNOW") for n in range(5)]
            lines = transact(namesrv.address, topic, ended + pending, 5)
            assert checked(lines) == [f"open {n}" for n in range(5)]
            early = consume(namesrv.address, topic, 3, group="interop_early")
            assert {base64.b64decode(line["body"])[:5] for line in early} == {b"ended"}
        finally:
            broker.stop()

        # Two rounds, because the new message may be too young in the first one.
        broker = BROKERS[second](tmp_path / "second", namesrv.address, **(QUICK_CHECKS | shared))
        try:
            lines = transact(namesrv.address, topic, [message("asked", "UNKNOW", "COMMIT_MESSAGE")], 11)
            assert checked(lines) == ["asked", *(f"open {n}" for n in range(5))]
            received = consume(namesrv.address, topic, 4, group="interop_late")
            names = sorted(base64.b64decode(line["body"]).decode() for line in received)
            assert names == ["asked", "ended 0", "ended 2", "ended 4"]
        finally:
            broker.kill()
    finally:
        namesrv.kill()
