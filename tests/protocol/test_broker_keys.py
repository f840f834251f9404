"""Tests that the broker's keys named in the protocol package are keys of its configuration."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gantrymq.auth.config import AuthConfig
from gantrymq.broker.config import BrokerConfig
from gantrymq.config import property_key
from gantrymq.protocol.broker_keys import READ_AT_START
from gantrymq.remoting.tls import TlsConfig
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import StoreConfig


def test_what_is_read_at_the_start() -> None:
    def keys(*kinds: type[Any]) -> set[str]:
        return {property_key(field) for kind in kinds for field in fields(kind)}

    assert keys(TlsConfig, AuthConfig) <= READ_AT_START
    assert keys(BrokerConfig, StoreConfig, ReplicationConfig, AuthConfig) >= READ_AT_START
