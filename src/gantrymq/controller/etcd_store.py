"""Stores the state of several controllers in etcd, through its JSON gateway (v3) over HTTP.

    PREFIX/leader          the leading controller, as JSON; bound to its lease and deleted with it
    PREFIX/brokers/NAME    a broker set

A controller leads if it creates the leader's key while none exists. The revision that created the key is the number of
the term. Each change compares this revision and the last known revision of the broker set. A delayed request therefore
has no effect in a later term, or after a later change of the same set.

The gateway needs only an HTTP client, which the project already uses. A gRPC client would need code generated from
etcd's protocol files, and a C runtime. A controller sends only a few requests per second.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gantrymq.controller.state_store import Leader, Term
from gantrymq.errors import GantryError
from gantrymq.extras import missing
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.system.clock import monotonic

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

#: Lifetime of the leader's key without a keepalive, in s. etcd grants no shorter lifetime with its default election
#: timeout of 1 s. Decision record: docs/decisions/controller-leases.md.
LEASE_S = 2
#: Interval of a leader's keepalives and of a follower's attempts to lead, in s.
INTERVAL_S = 0.3
#: Timeout of a keepalive or a read of the leader's key at one member, in s. If two of three members hang, the third one
#: still gets the request before the lease ends.
KEEP_TIMEOUT_S = 0.6
#: Timeout of any other request to one member, in s. After that, the request is sent to the next member.
TIMEOUT_S = 1.5
#: Largest number of broker sets in one response.
PAGE = 500


class _KeyValue(msgspec.Struct):
    key: str
    value: str = ""
    create_revision: int = 0
    mod_revision: int = 0

    @property
    def data(self) -> bytes:
        return b64decode(self.value)


class _Header(msgspec.Struct):
    revision: int = 0


class _Range(msgspec.Struct):
    header: _Header = msgspec.field(default_factory=_Header)
    kvs: list[_KeyValue] = []
    more: bool = False


class _Response(msgspec.Struct):
    response_range: _Range | None = None


class _Transaction(msgspec.Struct):
    header: _Header
    succeeded: bool = False
    responses: list[_Response] = []


class _Lease(msgspec.Struct):
    id: int = msgspec.field(name="ID", default=0)
    ttl: int = msgspec.field(name="TTL", default=0)


class _Kept(msgspec.Struct):
    result: _Lease = msgspec.field(default_factory=_Lease)


class EtcdStore:
    """A StateStore in etcd. `endpoints` are URLs of etcd members, `group` is the name of the group of controllers."""

    interval_s = INTERVAL_S

    def __init__(self, endpoints: Sequence[str], group: str) -> None:
        self._endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._leader = f"/gantrymq/controller/{group}/leader"
        self._brokers = f"/gantrymq/controller/{group}/brokers/"
        self._client: httpx.AsyncClient | None = None
        #: Id of the lease of the current or the last term. 0 if there is none.
        self._lease = 0
        #: Revision of each broker set when it was last read or written.
        self.revisions: dict[str, int] = {}

    async def open(self) -> None:
        """Creates the HTTP client. Raises MissingExtra. Unreachable members are not an error here."""
        try:
            import httpx
        except ImportError as e:
            raise missing("etcd", "etcdEndpoints", e) from e
        if self._client is None:
            self._client = httpx.AsyncClient(trust_env=False)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    # -- leading ------------------------------------------------------------------------------------------------

    async def campaign(self, me: Leader) -> Term | None:
        await self._revoke()
        if await self.leader() is not None:
            # Reads the key first, because etcd handles a read faster than a lease that is granted and revoked at once.
            return None
        began = monotonic()
        lease = await self._ask("lease/grant", {"TTL": LEASE_S}, _Lease)
        self._lease = lease.id
        nobody = _compare(self._leader, "CREATE", "create_revision", 0)
        done = await self._ask(
            "kv/txn",
            {"compare": [nobody], "success": [_put(self._leader, encode_json(me), lease=lease.id)]},
            _Transaction,
        )
        if done.succeeded:
            return Term(done.header.revision, began + lease.ttl)
        await self._revoke()
        return None

    async def keep(self, term: Term) -> Term | None:
        began = monotonic()
        kept = await self._ask("lease/keepalive", {"ID": self._lease}, _Kept, KEEP_TIMEOUT_S)
        # An expired lease has the TTL 0.
        return Term(term.number, began + kept.result.ttl) if kept.result.ttl > 0 else None

    async def resign(self, term: Term) -> None:
        await self._revoke()

    async def leader(self) -> Leader | None:
        found = await self._ask("kv/range", {"key": _text(self._leader)}, _Range, KEEP_TIMEOUT_S)
        return decode_json(found.kvs[0].data, Leader) if found.kvs else None

    async def _revoke(self) -> None:
        """Revokes the lease of an earlier term, which also deletes the leader's key."""
        if self._lease:
            lease, self._lease = self._lease, 0
            try:
                await self._ask("lease/revoke", {"ID": lease}, dict[str, Any])
            except GantryError as e:
                log.info("the lease %d isn't given back, it ends by itself: %s", lease, e)

    # -- broker sets --------------------------------------------------------------------------------------------

    async def load(self) -> dict[str, bytes]:
        """Returns all broker sets. Reads them in pages, all at the same revision."""
        found: list[_KeyValue] = []
        start, end = self._brokers, self._brokers[:-1] + chr(ord("/") + 1)
        revision = 0
        while True:
            request = {"key": _text(start), "range_end": _text(end), "limit": PAGE, "revision": revision}
            page = await self._ask("kv/range", request, _Range)
            revision = revision or page.header.revision
            found += page.kvs
            if not page.more:
                break
            start = b64decode(found[-1].key).decode() + "\0"
        names = {b64decode(each.key).decode().removeprefix(self._brokers): each for each in found}
        self.revisions = {name: each.mod_revision for name, each in names.items()}
        return {name: each.data for name, each in names.items()}

    async def commit(self, term: Term, name: str, value: bytes) -> bool:
        key = self._brokers + name
        request = {
            "compare": [
                _compare(self._leader, "CREATE", "create_revision", term.number),
                _compare(key, "MOD", "mod_revision", self.revisions.get(name, 0)),
            ],
            "success": [_put(key, value)],
            "failure": [_get(self._leader), _get(key)],
        }
        done = await self._ask("kv/txn", request, _Transaction)
        if done.succeeded:
            self.revisions[name] = done.header.revision
            return True
        leader, kept = (response.response_range or _Range() for response in done.responses)
        if not leader.kvs or leader.kvs[0].create_revision != term.number:
            return False
        if kept.kvs and kept.kvs[0].data == value:
            # The change was already made by a first attempt, whose response was lost.
            self.revisions[name] = kept.kvs[0].mod_revision
            return True
        raise GantryError(f"broker set {name!r} in etcd was changed by somebody else")

    # -- requests -----------------------------------------------------------------------------------------------

    async def _ask(self, path: str, body: dict[str, Any], answer: type[Any], timeout_s: float = TIMEOUT_S) -> Any:
        """Returns the response of the first member that sends one. Later requests go to this member first.

        `timeout_s` applies to each member. Raises GantryError if no member responds.
        """
        import httpx

        if self._client is None:
            raise GantryError("the connection with etcd is closed")
        problems: list[str] = []
        for endpoint in list(self._endpoints):
            try:
                url = f"{endpoint}/v3/{path}"
                response = await self._client.post(url, content=encode_json(body), timeout=timeout_s)
                if response.status_code == httpx.codes.OK:
                    found = decode_json(response.content, answer)
                    self._endpoints.remove(endpoint)
                    self._endpoints.insert(0, endpoint)
                    return found
                problems.append(f"{endpoint}: {response.status_code} {response.text[:200].strip()}")
            except (httpx.HTTPError, httpx.InvalidURL) as e:
                problems.append(f"{endpoint}: {type(e).__name__} {e}".rstrip())
        raise GantryError(f"etcd doesn't answer {path}: {'; '.join(problems)}")


def _text(key: str) -> str:
    return b64encode(key.encode()).decode()


def _compare(key: str, target: str, field: str, revision: int) -> dict[str, Any]:
    return {"key": _text(key), "target": target, "result": "EQUAL", field: revision}


def _put(key: str, value: bytes, *, lease: int = 0) -> dict[str, Any]:
    return {"request_put": {"key": _text(key), "value": b64encode(value).decode(), "lease": lease}}


def _get(key: str) -> dict[str, Any]:
    return {"request_range": {"key": _text(key)}}
