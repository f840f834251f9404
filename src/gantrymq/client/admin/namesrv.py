"""NameServers: KV configuration, write permission of brokers, their own configuration."""

from __future__ import annotations

from collections.abc import Mapping

from gantrymq.background.failures import JobFailures, failed_jobs
from gantrymq.client.admin.base import AdminBase
from gantrymq.config import format_properties, parse_properties
from gantrymq.errors import BrokerError
from gantrymq.protocol.bodies.route import KVTable
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.namesrv import (
    AddWritePermResponseHeader,
    BrokerNameRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    KVConfigRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermResponseHeader,
)

#: KV namespace of order topics: "BROKER:QUEUES;..." by topic (NamesrvUtil).
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"


class AdminNamesrv(AdminBase):
    """Requests for NameServer data other than routes. A change goes to all servers and returns {HOST:PORT: result}."""

    async def kv_get(self, namespace: str, key: str) -> str | None:
        """Returns the value of a key, or None."""
        try:
            response = await self._ask_name_server(
                RequestCode.GET_KV_CONFIG, KVConfigRequestHeader(namespace=namespace, key=key)
            )
        except BrokerError as e:
            if e.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return response.read_header(GetKVConfigResponseHeader).value

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """Returns all keys and values of a namespace; empty for an unknown one."""
        try:
            response = await self._ask_name_server(
                RequestCode.GET_KVLIST_BY_NAMESPACE, GetKVListByNamespaceRequestHeader(namespace=namespace)
            )
        except BrokerError as e:
            if e.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise
        return decode_json(response.body, KVTable).table

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Sets the key on every NameServer."""
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        await self._each(
            f"setting {namespace}/{key}", self.name_servers, lambda a: self._call(a, RequestCode.PUT_KV_CONFIG, header)
        )

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Deletes the key from every NameServer, if it exists."""
        header = KVConfigRequestHeader(namespace=namespace, key=key)
        await self._each(
            f"deleting {namespace}/{key}",
            self.name_servers,
            lambda a: self._call(a, RequestCode.DELETE_KV_CONFIG, header),
        )

    async def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Makes the broker read-only in all routes. Returns how many topics each NameServer has changed."""

        async def wipe(name_server: str) -> int:
            header = BrokerNameRequestHeader(broker_name=broker_name)
            response = await self._call(name_server, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
            return response.read_header(WipeWritePermResponseHeader).wipe_topic_count

        return await self._each(f"wiping the write permission of {broker_name}", self.name_servers, wipe)

    async def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Reverses `wipe_write_perm`. Returns how many topics each NameServer has changed."""

        async def add(name_server: str) -> int:
            header = BrokerNameRequestHeader(broker_name=broker_name)
            response = await self._call(name_server, RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
            return response.read_header(AddWritePermResponseHeader).add_topic_count

        return await self._each(f"adding the write permission of {broker_name}", self.name_servers, add)

    async def name_server_configs(self) -> dict[str, dict[str, str]]:
        """Returns every NameServer's configuration under Java's keys."""

        async def get(name_server: str) -> dict[str, str]:
            response = await self._call(name_server, RequestCode.GET_NAMESRV_CONFIG)
            return parse_properties(response.body.decode("utf-8", "replace"), source=name_server)

        return await self._each("reading the configuration", self.name_servers, get)

    async def failed_name_server_jobs(self) -> dict[str, list[JobFailures]]:
        """Returns the background jobs of every NameServer that failed since its start; empty for Java's NameServers."""

        async def get(name_server: str) -> list[JobFailures]:
            return failed_jobs((await self._call(name_server, RequestCode.GET_NAMESRV_CONFIG)).ext_fields)

        return await self._each("reading which jobs failed", self.name_servers, get)

    async def update_name_server_configs(self, changes: Mapping[str, str]) -> None:
        """Changes keys of every NameServer's configuration."""
        body = format_properties(changes).encode()
        await self._each(
            f"setting {', '.join(changes)}",
            self.name_servers,
            lambda a: self._call(a, RequestCode.UPDATE_NAMESRV_CONFIG, body=body),
        )

    async def order_conf(self, topic: str) -> str | None:
        """Returns the configuration "BROKER:QUEUES;..." of an order topic, or None."""
        return await self.kv_get(ORDER_TOPIC_NAMESPACE, topic)

    async def put_order_conf(self, topic: str, order_conf: str) -> None:
        """Sets the configuration of an order topic, the number of queues on each broker: "broker-a:8;broker-b:8"."""
        await self.kv_put(ORDER_TOPIC_NAMESPACE, topic, order_conf)

    async def merge_order_conf(self, topic: str, broker_name: str, queue_nums: int) -> str:
        """Sets one broker's part of a topic's order configuration. Returns the whole configuration."""
        parts = dict(part.split(":", 1) for part in (await self.order_conf(topic) or "").split(";") if ":" in part)
        parts[broker_name] = str(queue_nums)
        order_conf = ";".join(f"{name}:{queues}" for name, queues in parts.items())
        await self.put_order_conf(topic, order_conf)
        return order_conf

    async def delete_order_conf(self, topic: str) -> None:
        """Deletes the order configuration of a topic."""
        await self.kv_delete(ORDER_TOPIC_NAMESPACE, topic)
