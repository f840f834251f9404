"""ProxyConfig: Java's keys of rmq-proxy.json, those that a proxy here has a use for (`ProxyConfig`)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from gantrymq.config import DAY_MS, MAX_INT, bounded, read_properties
from gantrymq.errors import ConfigError
from gantrymq.remoting.tls import TlsConfig

_HOUR_MS = 3600 * 1000


class MetricsExporterType(Enum):
    """Where figures go (`MetricsExporterType`); Java has two more ways."""

    DISABLE = "DISABLE"
    PROM = "PROM"


@dataclass
class ProxyConfig(TlsConfig):
    """Defaults are Java's. Times are in ms unless the name says otherwise; a maximum of 0 is none.

    `tls.enable` and `tls.client.*` are for its connections with brokers and NameServers.
    """

    #: The NameServers, with ; between them.
    namesrv_addr: str = ""
    #: Where groups, users and policies are asked for: every broker of a cluster is taken to have the same.
    rocket_mq_cluster_name: str = field(default="DefaultCluster", metadata={"key": "rocketMQClusterName"})
    #: What its metrics are labelled with; the host's name without one.
    proxy_cluster_name: str = "DefaultCluster"
    proxy_name: str = ""
    bind_address: str = "0.0.0.0"
    #: 0 takes any free port.
    grpc_server_port: int = bounded(8081, 0, 65535)
    #: Whether routes name the proxy with the port that the client came to it by, not with grpcServerPort.
    use_endpoint_port_from_request: bool = False
    #: For clients of the remoting protocol; 0 takes any free port.
    remoting_listen_port: int = bounded(8080, 0, 65535)
    #: Other processes of this proxy listen on the same ports; `--processes` sets it.
    shared_ports: bool = False
    #: How routes name the proxy to them; the address by which they came without one.
    remoting_access_addr: str = ""
    #: gRPC by that port, too.
    enable_remoting_local_proxy_grpc: bool = True
    #: These three have other keys than those of brokers and NameServers.
    tls_test_mode_enable: bool = True
    tls_server_key_path: Path | None = field(default=None, metadata={"key": "tlsKeyPath"})
    tls_server_cert_path: Path | None = field(default=None, metadata={"key": "tlsCertPath"})

    #: PROM: figures for Prometheus at the port, /metrics.
    metrics_exporter_type: MetricsExporterType = MetricsExporterType.DISABLE
    metrics_prom_exporter_port: int = bounded(5557, 0, 65535)
    metrics_prom_exporter_host: str = ""

    # -- requests -----------------------------------------------------------------------------------------------
    grpc_max_inbound_message_size: int = bounded(130 * 1024 * 1024, 1024, MAX_INT)
    #: A client's connection that was silent for so long is closed; so is one whose streams are all idle.
    grpc_client_idle_time_mills: int = bounded(120_000, 1000, DAY_MS)
    max_message_size: int = bounded(4 * 1024 * 1024, 0, MAX_INT)
    enable_message_body_empty_check: bool = True
    max_user_property_size: int = bounded(16 * 1024, 0, MAX_INT)
    user_property_max_num: int = bounded(128, 0, MAX_INT)
    max_message_group_size: int = bounded(64, 0, MAX_INT)
    max_delay_time_mills: int = bounded(DAY_MS, 0, 1 << 50)
    max_transaction_recovery_second: int = bounded(3600, 0, MAX_INT)
    enable_topic_message_type_check: bool = True
    use_delay_level: bool = False
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    # -- consumers ----------------------------------------------------------------------------------------------
    default_invisible_time_mills: int = bounded(60_000, 0, 1 << 50)
    min_invisible_time_mills_for_recv: int = bounded(10_000, 0, 1 << 50)
    max_invisible_time_mills: int = bounded(12 * _HOUR_MS, 0, 1 << 50)
    grpc_client_consumer_min_long_polling_timeout_millis: int = bounded(5_000, 0, DAY_MS)
    grpc_client_consumer_max_long_polling_timeout_millis: int = bounded(20_000, 0, DAY_MS)
    grpc_client_consumer_long_polling_batch_size: int = bounded(32, 1, 1024)
    long_polling_reserve_time_in_millis: int = bounded(100, 0, DAY_MS)
    enable_proxy_auto_renew: bool = True
    max_renew_retry_times: int = bounded(3, 0, MAX_INT)
    renew_ahead_time_millis: int = bounded(10_000, 0, DAY_MS)
    renew_max_time_millis: int = bounded(3 * _HOUR_MS, 0, 1 << 50)
    renew_schedule_period_millis: int = bounded(5_000, 10, DAY_MS)
    invisible_time_millis_when_clear: int = bounded(1_000, 0, DAY_MS)

    # -- what clients are told ----------------------------------------------------------------------------------
    grpc_client_producer_max_attempts: int = bounded(3, 1, MAX_INT)
    grpc_client_producer_backoff_initial_millis: int = bounded(10, 0, DAY_MS)
    grpc_client_producer_backoff_max_millis: int = bounded(1_000, 0, DAY_MS)
    grpc_client_producer_backoff_multiplier: int = bounded(2, 1, 100)

    # -- access control -----------------------------------------------------------------------------------------
    #: Users sign their calls; who they are and what they may do is asked of the brokers of rocketMQClusterName.
    authentication_enabled: bool = False
    authorization_enabled: bool = False
    #: Requests that need neither, by their full names, with commas between them.
    authentication_whitelist: str = ""
    authorization_whitelist: str = ""
    #: {"accessKey": ..., "secretKey": ...}: a super user of the brokers', as whom the proxy itself asks them.
    inner_client_authentication_credentials: str = field(default="", repr=False)

    # -- what is remembered -------------------------------------------------------------------------------------
    #: A client that was silent for so long is gone.
    channel_expired_timeout: int = bounded(120_000, 1000, DAY_MS)
    topic_config_cache_refresh_seconds: int = bounded(20, 1, MAX_INT)
    topic_config_cache_max_num: int = bounded(20_000, 1, MAX_INT)
    subscription_group_config_cache_refresh_seconds: int = bounded(20, 1, MAX_INT)
    subscription_group_config_cache_max_num: int = bounded(20_000, 1, MAX_INT)
    user_cache_refresh_seconds: int = bounded(20, 1, MAX_INT)
    user_cache_max_num: int = bounded(20_000, 1, MAX_INT)
    acl_cache_refresh_seconds: int = bounded(20, 1, MAX_INT)
    acl_cache_max_num: int = bounded(20_000, 1, MAX_INT)
    transaction_heartbeat_period_second: int = bounded(20, 1, MAX_INT)
    transaction_data_expire_millis: int = bounded(30_000, 100, DAY_MS)
    #: How many halves of one transaction id are remembered.
    transaction_data_max_num: int = bounded(15, 1, MAX_INT)
    grpc_proxy_relay_request_timeout_in_seconds: int = bounded(5, 1, MAX_INT)

    def credentials(self) -> tuple[str, str] | None:
        """The proxy's own access key and secret key; None for none. Raises ConfigError."""
        if not self.inner_client_authentication_credentials.strip():
            return None
        try:
            # Java's file has an object in a string; an object is as good.
            keys: Any = json.loads(self.inner_client_authentication_credentials)
            return str(keys["accessKey"]), str(keys["secretKey"])
        except (ValueError, TypeError, KeyError):
            # Not what it says: that is a secret.
            raise ConfigError(
                'innerClientAuthenticationCredentials must be {"accessKey": ..., "secretKey": ...}'
            ) from None


#: Not to be shown: they hold secrets.
SECRET_KEYS = ("innerClientAuthenticationCredentials",)


def load_json(path: Path) -> dict[str, str]:
    """The keys of a file like rmq-proxy.json, with their values as text. Raises ConfigError."""
    try:
        values: Any = json.loads(read_properties(path))
    except ValueError as e:
        raise ConfigError(f"{path} is no JSON: {e}") from e
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: an object with keys and values is expected")
    return {key: _text(value) for key, value in values.items() if value is not None}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
