"""Shared by tests of access control: a cluster with access control, users with permissions, and signing clients."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from proxy_support import Rpc
from running_proxy import running_proxy

from gantrymq.auth.config import AuthConfig
from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.proxy.proxy import Proxy
from gantrymq.testing.embedded import EmbeddedCluster

ROOT = '{"accessKey": "root", "secretKey": "root-secret"}'


@contextmanager
def cluster_with_users() -> Iterator[EmbeddedCluster]:
    """Starts a cluster whose only user is root."""
    auth = AuthConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user='{"username": "root", "password": "root-secret"}',
    )
    with EmbeddedCluster(auth=auth) as cluster:
        yield cluster


@asynccontextmanager
async def proxy_with_users(cluster: EmbeddedCluster, **more: Any) -> AsyncIterator[Proxy]:
    """Starts a proxy. `more` are fields of ProxyConfig."""
    async with running_proxy(
        cluster.name_server,
        authentication_enabled=True,
        authorization_enabled=True,
        inner_client_authentication_credentials=ROOT,
        **more,
    ) as proxy:
        yield proxy


class SigningRpc(Rpc):
    """Signs its calls as Apache's clients do."""

    def __init__(self, channel: Any, username: str, secret: str, client_id: str = "") -> None:
        super().__init__(channel, client_id or f"client of {username}")
        self.username = username
        self.secret = secret

    def metadata(self) -> tuple[tuple[str, str], ...]:
        now = time.strftime("%Y%m%dT%H%M%SZ")
        signature = hmac.new(self.secret.encode(), now.encode(), hashlib.sha1).hexdigest().upper()
        items = (f"Credential={self.username}/cn/RocketMQ", "SignedHeaders=x-mq-date-time", f"Signature={signature}")
        return (
            ("x-mq-client-id", self.client_id),
            ("x-mq-language", "JAVA"),
            ("x-mq-date-time", now),
            ("authorization", f"MQv2-HMAC-SHA1 {', '.join(items)}"),
        )


async def allow(admin: AdminClient, cluster: EmbeddedCluster, name: str, *rights: tuple[str, str]) -> None:
    """Creates a user and allows these (resource, action) pairs."""
    await admin.create_user(cluster.brokers, UserInfo(name, f"{name}-secret"))
    for resource, action in rights:
        await admin.create_acl(cluster.brokers, acl_of(f"User:{name}", [resource], [action], [], "Allow"))
