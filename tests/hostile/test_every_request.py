"""Each request code of broker and NameServer with meaningless fields and bodies."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from every_request import (
    Known,
    Request,
    hostile_bodies,
    hostile_fields,
    large_bodies,
    learn,
    unreadable_fields,
)
from hostile_support import UnderAttack, faults
from ports import free_port
from server_handlers import handlers_of

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.store.config import StoreConfig
from gantrymq.testing.processes import ServerProcess

#: Requests that may get no response: long polls wait, and an unknown transaction state is not confirmed.
UNANSWERED = {
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.END_TRANSACTION,
}
#: Codes from here on do not fit a binary header.
_JSON_ONLY = 1 << 15
#: Format of a line in Prometheus' text format.
_FIGURE = re.compile(r'#.*|[a-zA-Z_:][\w:]*(?:\{(?:\w+="(?:[^"\\\n]|\\.)*",?)*\})? \S+')
#: A request without a response for this time counts as unanswered, in seconds.
_SILENCE_S = 2.0

#: Largest number of log lines for all requests of a code: 20 lines for each position in the code.
MOST_LINES = 100

Attacks = Callable[[Known], Iterator[Request]]


class Attacker:
    """A connection that is used until the server closes it."""

    def __init__(self, server: ServerProcess, *, binary: bool = False) -> None:
        host, port = server.address.rsplit(":", 1)
        self._address = host, int(port)
        self._binary = binary
        #: Number of responses by code.
        self.results = Counter[int]()

    async def ask_all(self, requests: list[Request]) -> list[Request]:
        """Sends all requests at once. Returns those without a response."""
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            for opaque, request in enumerate(requests):
                writer.write(request.frame(opaque, binary=self._binary and request.code < _JSON_ONLY))
            waiting = set(range(len(requests)))
            frames = FrameReader()
            while waiting:
                try:
                    data = await asyncio.wait_for(reader.read(1 << 20), _SILENCE_S)
                except (TimeoutError, ConnectionResetError):
                    # The server closed the connection while requests were on their way, so TCP resets it.
                    break
                if not data:
                    break
                answers = list(frames.feed(data))
                waiting -= {answer.opaque for answer in answers}
                self.results.update(answer.code for answer in answers)
            return [requests[opaque] for opaque in sorted(waiting)]
        finally:
            writer.close()

    async def is_served(self, request: Request) -> bool:
        """Returns true if a single request on its own connection gets a response or a closed connection."""
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(request.frame(1, binary=self._binary and request.code < _JSON_ONLY))
            await asyncio.wait_for(reader.read(1 << 20), _SILENCE_S)
        except TimeoutError:
            return request.code in UNANSWERED
        except ConnectionResetError:
            return True
        finally:
            writer.close()
        return True


async def known_to_broker(directory: Path) -> list[Known]:
    store = StoreConfig(store_path_root_dir=directory)
    config = BrokerConfig(
        broker_name="broker-a", bind_address="127.0.0.1", listen_port=0, recall_message_enable=True, store=store
    )
    return await _known(Broker(config))


async def known_to_name_server(directory: Path) -> list[Known]:
    config = NamesrvConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=directory / "kv.json",
        config_store_path=directory / "namesrv.properties",
    )
    return await _known(NameServer(config))


async def _known(server: Broker | NameServer) -> list[Known]:
    await server.start()
    try:
        reader, writer = await asyncio.open_connection(*server.address.rsplit(":", 1))

        async def ask(request: Request) -> None:
            writer.write(request.frame(1))
            # The server responds to this code in any case, which shows that the previous request was handled.
            writer.write(Request(-1, "no such code", {}).frame(2))
            frames = FrameReader()
            while True:
                if any(answer.opaque == 2 for answer in frames.feed(await reader.read(1 << 20))):
                    return

        return await learn(handlers_of(server), ask)
    finally:
        await server.stop()


async def attack(
    server: ServerProcess, known: list[Known], attacks: Attacks, *, binary: bool, at_once: int = 1000
) -> Counter[int]:
    """Runs all attacks on all codes. Returns the number of responses by code.

    Fails with the requests that got no response or caused an error in the log.
    """
    attacker = Attacker(server, binary=binary)
    failures = []
    read = server.log_path.stat().st_size
    for one in known:
        requests = list(attacks(one))
        lines = _lines(server)
        unanswered = []
        for start in range(0, len(requests), at_once):
            unanswered += await attacker.ask_all(requests[start : start + at_once])
        if one.code not in UNANSWERED:
            failures += [f"{one.code}, {request.what}: no answer" for request in unanswered]
        if (written := _lines(server) - lines) > MOST_LINES:
            failures.append(f"{one.code}: {len(requests)} requests wrote {written} lines into the log")
        found, read = _new_faults(server, read)
        if found:
            failures.append(f"{one.code}: {found[0]}")
    assert not failures, "\n".join(failures)
    return attacker.results


def _lines(server: ServerProcess) -> int:
    return server.log_path.read_bytes().count(b"\n")


def _new_faults(server: ServerProcess, read: int) -> tuple[list[str], int]:
    with server.log_path.open("rb") as log:
        log.seek(read)
        text = log.read()
    return faults(text.decode(errors="replace")), read + len(text)


@pytest.mark.parametrize("encoding", ["json", "binary"])
async def test_fields_for_the_broker(under_attack: UnderAttack, tmp_path: Path, encoding: str) -> None:
    known = await known_to_broker(tmp_path / "learning")
    assert sum(bool(one.fields) for one in known) > 50
    port = free_port()
    properties = {"recallMessageEnable": "true", "metricsPort": str(port)}
    async with under_attack(properties=properties) as broker:
        await attack(broker.process, known, hostile_fields, binary=encoding == "binary")
        figures = await asyncio.to_thread(read_figures, port)
        # Only "\n" ends a line. Label values may contain the other characters at which `splitlines` splits.
        assert not [line for line in figures.removesuffix("\n").split("\n") if not _FIGURE.fullmatch(line)]
    assert not list(broker.directory.rglob("escaped*"))


def read_figures(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


#: A user of ACL 2.0 with all permissions, and credentials of other users.
_ROOT = '{"username":"root","password":"secret"}'
_CREDENTIALS: list[dict[str, str | bytes]] = [
    {"AccessKey": access_key, "Signature": signature}
    for access_key in ("", "root", "nobody", "x" * 32_768, "a\nb\x00")
    for signature in ("", "x", "\xff" * 32_768)
]


async def test_fields_of_those_who_have_no_rights(under_attack: UnderAttack, tmp_path: Path) -> None:
    """All requests are rejected for missing permissions. The innocent client's two codes are on the white lists."""
    open_to_all = "310,11"
    properties = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": _ROOT,
        "authenticationWhitelist": open_to_all,
        "authorizationWhitelist": open_to_all,
    }
    known = [one for one in await known_to_broker(tmp_path / "learning") if one.code not in (310, 11)]

    def strangers(one: Known) -> Iterator[Request]:
        for credentials in ({}, *_CREDENTIALS):
            for request in islice(hostile_fields(one), 3):
                yield replace(request, fields={**request.fields, **credentials})
            yield Request(one.code, "as it should be", {**one.fields, **credentials}, one.body)

    async with under_attack(properties=properties) as broker:
        answers = await attack(broker.process, known, strangers, binary=False)
        assert set(answers) == {ResponseCode.NO_PERMISSION}, answers


async def test_bodies_for_the_broker(under_attack: UnderAttack, tmp_path: Path) -> None:
    known = await known_to_broker(tmp_path / "learning")
    assert sum(one.body_type is not None for one in known) > 12
    async with under_attack(properties={"recallMessageEnable": "true"}) as broker:
        await attack(broker.process, known, hostile_bodies, binary=False)


async def test_large_bodies(under_attack: UnderAttack, tmp_path: Path) -> None:
    brokers, name_servers = await known_to_broker(tmp_path / "learning"), await known_to_name_server(tmp_path)
    async with under_attack() as broker:
        await attack(broker.process, brokers, large_bodies, binary=False, at_once=1)
        await attack(broker.name_server, name_servers, large_bodies, binary=False, at_once=1)


@pytest.mark.parametrize("encoding", ["json", "binary"])
async def test_fields_and_bodies_for_the_name_server(under_attack: UnderAttack, tmp_path: Path, encoding: str) -> None:
    known = await known_to_name_server(tmp_path)
    assert sum(bool(one.fields) for one in known) > 10
    async with under_attack() as broker:
        for attacks in (hostile_fields, hostile_bodies):
            await attack(broker.name_server, known, attacks, binary=encoding == "binary")


@pytest.mark.parametrize("encoding", ["json", "binary"])
async def test_fields_that_are_no_text(under_attack: UnderAttack, tmp_path: Path, encoding: str) -> None:
    brokers, name_servers = await known_to_broker(tmp_path / "learning"), await known_to_name_server(tmp_path)
    async with under_attack() as broker:
        for server, known in ((broker.process, brokers), (broker.name_server, name_servers)):
            attacker = Attacker(server, binary=encoding == "binary")
            for one in known:
                requests = list(unreadable_fields(one))
                served = await asyncio.gather(*map(attacker.is_served, requests))
                assert all(served), [
                    request.what for request, is_served in zip(requests, served, strict=True) if not is_served
                ]
