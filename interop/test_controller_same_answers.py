"""The same requests to Apache's controller and to this project's give the same codes, remarks, fields and bodies."""

from __future__ import annotations

import json
import select
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from controllers import CONTROLLERS
from servers import HERE

from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import quote_bare_keys
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.controller import LEASE_EPOCH_FIELD, LEASE_FIELD

sys.path.append(str(HERE.parent / "tests"))
from wait_until import wait_until

pytestmark = pytest.mark.interop(feature="controller", servers="java gantry")

CLUSTER, NAME = "c1", "broker-x"
#: Longer than a run, in milliseconds.
LIVES_MS = "600000"


class Asker:
    """A connection that returns the results of requests, without a controller's data about itself."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._frames = FrameReader()
        self._opaque = 0

    def ask(
        self, code: int, body: bytes = b"", *, meanwhile: Callable[[], object] | None = None, **fields: str
    ) -> tuple[int, str | None, dict[str, str], Any]:
        """Calls `meanwhile` again and again until the response arrives."""
        self._opaque += 1
        request = RemotingCommand.request(code, fields=fields, body=body)
        request.opaque = self._opaque
        self._socket.sendall(request.encode())
        while meanwhile is not None and not select.select([self._socket], [], [], 0.05)[0]:
            meanwhile()
        while True:
            for answer in self._frames.feed(self._socket.recv(1 << 16)):
                parsed = _sorted(json.loads(quote_bare_keys(answer.body))) if answer.body else None
                return answer.code, answer.remark, answer.ext_fields, parsed

    def close(self) -> None:
        self._socket.close()


def _sorted(value: Any) -> Any:
    """Sorts all lists, because sets have no order."""
    if isinstance(value, dict):
        return {key: _sorted(each) for key, each in value.items()}
    if isinstance(value, list):
        return sorted((_sorted(each) for each in value), key=str)
    return value


@contextmanager
def asker(address: str) -> Iterator[Asker]:
    one = Asker(address)
    try:
        yield one
    finally:
        one.close()


def conversation(address: str) -> list[tuple[str, Any]]:
    """Returns each request with its result."""
    said: list[tuple[str, Any]] = []
    with asker(address) as one, asker(address) as brokers:
        this = {"clusterName": CLUSTER, "brokerName": NAME}

        def ask(
            what: str, code: int, body: bytes = b"", meanwhile: Callable[[], object] | None = None, **fields: str
        ) -> None:
            said.append((what, one.ask(code, body, meanwhile=meanwhile, **fields)))

        def next_id() -> None:
            ask("next id", RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, **this)

        def apply(broker_id: int, code: str | None = None) -> None:
            check = code or f"h{broker_id}:1;{broker_id}"
            fields = {"appliedBrokerId": str(broker_id), "registerCheckCode": check}
            ask(f"apply for {broker_id} {check}", RequestCode.CONTROLLER_APPLY_BROKER_ID, **this, **fields)

        def register(broker_id: int, at: str) -> None:
            fields = {"brokerId": str(broker_id), "brokerAddress": at}
            ask(f"register {broker_id} {at}", RequestCode.CONTROLLER_REGISTER_BROKER, **this, **fields)

        #: {id: fields of the last heartbeat}.
        living: dict[int, dict[str, str]] = {}

        def beat(broker_id: int) -> tuple[int, str | None, dict[str, str], Any]:
            return brokers.ask(RequestCode.BROKER_HEARTBEAT, **this, **living[broker_id])

        def heartbeat(broker_id: int, **more: str) -> None:
            fields = {"brokerAddr": f"h{broker_id}:1", "heartbeatTimeoutMills": LIVES_MS, "brokerId": str(broker_id)}
            living[broker_id] = fields | more
            code, remark, lease, body = beat(broker_id)
            # Our controller also grants a lease.
            rest = {name: value for name, value in lease.items() if name not in (LEASE_FIELD, LEASE_EPOCH_FIELD)}
            said.append((f"heartbeat of {broker_id}", (code, remark, rest, body)))

        def elect(broker_id: int, *, designate: bool = False, name: str = NAME) -> None:
            fields = {"brokerId": str(broker_id), "designateElect": str(designate).lower()}
            fields |= {"clusterName": CLUSTER, "brokerName": name}
            # Our controller elects only a broker that sends a request during the election.
            alive = partial(beat, broker_id) if broker_id in living else None
            ask(f"elect {broker_id} {designate} {name}", RequestCode.CONTROLLER_ELECT_MASTER, b"", alive, **fields)

        def info(name: str = NAME) -> None:
            ask(f"info of {name}", RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName=name)

        def alter(members: list[int], master: int, epoch: int, of: int, name: str = NAME) -> None:
            body = json.dumps({"syncStateSet": members, "syncStateSetEpoch": of}).encode()
            fields = {"brokerName": name, "masterBrokerId": str(master), "masterEpoch": str(epoch)}
            what = f"alter to {members} by {master} of {epoch}, {of}"
            ask(what, RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, body, **fields)

        def data(*names: str) -> None:
            body = json.dumps(names).encode() if names else b""
            ask(f"data of {names}", RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body)

        def clean(ids: str | None = None, *, living: bool = False, name: str = NAME) -> None:
            fields = {"clusterName": CLUSTER, "brokerName": name, "isCleanLivingBroker": str(living).lower()}
            if ids is not None:
                fields["brokerControllerIdsToClean"] = ids
            ask(f"clean {ids} {living} {name}", RequestCode.CLEAN_BROKER_DATA, **fields)

        # No broker is registered.
        next_id()
        info()
        elect(1)
        register(1, "h1:1")
        alter([1], 1, 1, 1)
        clean()
        data()
        data(NAME)
        apply(2)
        # Three brokers get their ids.
        for broker_id in (1, 2, 3):
            apply(broker_id)
            next_id()
        apply(2)
        apply(2, "other:1;9")
        info()
        register(1, "h1:1")
        register(4, "h4:1")
        data(NAME)
        fields = {"brokerAddr": "hNone:1", "heartbeatTimeoutMills": LIVES_MS}
        said.append(("heartbeat without an id", brokers.ask(RequestCode.BROKER_HEARTBEAT, **this, **fields)))
        for broker_id in (1, 2):
            heartbeat(broker_id, epoch="1", maxOffset="100", confirmOffset="100")
        # The first master and its in-sync set.
        elect(1)
        elect(2)
        info()
        register(2, "h2:1")
        register(2, "moved:1")
        alter([1], 1, 1, 1)
        alter([1, 2], 2, 1, 1)
        alter([1, 2], 1, 0, 1)
        alter([1, 2], 1, 1, 0)
        alter([1, 9], 1, 1, 1)
        alter([1, 3], 1, 1, 1)
        alter([2], 1, 1, 1)
        alter([1, 2], 1, 1, 1)
        alter([1, 2], 1, 1, 2)
        info()
        data(NAME, "unknown")
        # Another master.
        elect(3, designate=True)
        elect(2, designate=True)
        elect(2, designate=True)
        elect(1)
        info()
        alter([1, 2], 1, 1, 3)
        alter([1, 2], 2, 2, 3)
        # Brokers are removed.
        clean()
        clean("1;2")
        clean("x")
        clean("3")
        clean("3", name="unknown")
        data(NAME)
        next_id()
        # An unclean election.
        ask("configure", RequestCode.UPDATE_CONTROLLER_CONFIG, b"enableElectUncleanMaster=true\n")
        apply(4)
        heartbeat(4, epoch="0", maxOffset="0")
        elect(4, designate=True)
        data(NAME)
        ask("configure", RequestCode.UPDATE_CONTROLLER_CONFIG, b"enableElectUncleanMaster=false\n")
        brokers.close()
    # No broker is alive, so none is elected.
    with asker(address) as one:
        asked = RequestCode.CONTROLLER_GET_REPLICA_INFO
        wait_until(lambda: "masterBrokerId" not in one.ask(asked, brokerName=NAME)[2])
        # Java increments the epoch with each of up to three attempts. Our controller has one epoch without a master.
        code, remark, fields, body = one.ask(asked, brokerName=NAME)
        fields.pop("masterEpoch")
        said.append(("info without a master", (code, remark, fields, body)))
        elect(1)
        clean(living=True)
        info()
    return said


@pytest.mark.timeout(200)
def test_both_say_the_same(tmp_path: Path) -> None:
    said = {}
    for kind, start in CONTROLLERS.items():
        controller = start(tmp_path / kind)
        try:
            said[kind] = conversation(controller.address)
        finally:
            controller.kill()
    assert len(said["java"]) > 60
    for java, ours in zip(said["java"], said["gantry"], strict=True):
        assert ours == java, java[0]
