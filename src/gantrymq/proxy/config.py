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
    #: The cluster that its metrics are labelled with.
    proxy_cluster_name: str = "DefaultCluster"
    #: What its metrics call it; the host's name without one.
    proxy_name: str = ""
    #: The address it listens at.
    bind_address: str = "0.0.0.0"
    #: 0 takes any free port.
    grpc_server_port: int = bounded(8081, 0, 65535)
    #: Whether routes name the proxy with the port that the client came to it by, not with grpcServerPort.
    use_endpoint_port_from_request: bool = False
    #: For clients of the remoting protocol; 0 takes any free port.
    remoting_listen_port: int = bounded(8080, 0, 65535)
    #: How routes name the proxy to them; without it, the address by which they came.
    remoting_access_addr: str = ""
    #: gRPC by that port, too.
    enable_remoting_local_proxy_grpc: bool = True
    #: Other processes of this proxy listen on the same ports; `--processes` sets it.
    shared_ports: bool = False
    # These three have other keys than those of brokers and NameServers.
    #: Without files a certificate is made when the first client wants TLS.
    tls_test_mode_enable: bool = True
    #: The private key of its certificate, PEM.
    tls_server_key_path: Path | None = field(default=None, metadata={"key": "tlsKeyPath"})
    #: Its certificate, PEM, with what it was signed by.
    tls_server_cert_path: Path | None = field(default=None, metadata={"key": "tlsCertPath"})

    #: PROM: figures for Prometheus at the port, /metrics.
    metrics_exporter_type: MetricsExporterType = MetricsExporterType.DISABLE
    #: Where Prometheus asks; 0 takes any free port.
    metrics_prom_exporter_port: int = bounded(5557, 0, 65535)
    #: The address of that port; bindAddress without one.
    metrics_prom_exporter_host: str = ""

    #: A file with a line for each call or request: when (ms), from where, which client, what, result, how long (ms).
    access_log_path: Path | None = None

    # -- requests -----------------------------------------------------------------------------------------------
    #: Longer requests are refused, bytes.
    grpc_max_inbound_message_size: int = bounded(130 * 1024 * 1024, 1024, MAX_INT)
    #: A client's connection that was silent for so long is closed; so is one whose streams are all idle.
    grpc_client_idle_time_mills: int = bounded(120_000, 1000, DAY_MS)
    #: Longer bodies are refused, bytes; 0 for none.
    max_message_size: int = bounded(4 * 1024 * 1024, 0, MAX_INT)
    #: A message without a body is refused.
    enable_message_body_empty_check: bool = True
    #: Of all properties, tag and keys of a message, bytes.
    max_user_property_size: int = bounded(16 * 1024, 0, MAX_INT)
    #: Properties of one message.
    user_property_max_num: int = bounded(128, 0, MAX_INT)
    #: Of the name of a message group, bytes; 0 for any.
    max_message_group_size: int = bounded(64, 0, MAX_INT)
    #: A message may be delayed for so long; 0 for any time.
    max_delay_time_mills: int = bounded(DAY_MS, 0, 1 << 50)
    #: A producer may ask to be asked of a transaction after so long, s.
    max_transaction_recovery_second: int = bounded(3600, 0, MAX_INT)
    #: A message of another kind than its topic takes is refused.
    enable_topic_message_type_check: bool = True
    #: Brokers are given levels of delay in place of times.
    use_delay_level: bool = False
    #: The times of these levels.
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    # -- consumers ----------------------------------------------------------------------------------------------
    #: A message is invisible for so long first, if the proxy renews it.
    default_invisible_time_mills: int = bounded(60_000, 0, 1 << 50)
    #: The least that a receive may ask for.
    min_invisible_time_mills_for_recv: int = bounded(10_000, 0, 1 << 50)
    #: The most that a client may ask for; 0 for any time.
    max_invisible_time_mills: int = bounded(12 * _HOUR_MS, 0, 1 << 50)
    #: A receive waits at least so long for messages.
    grpc_client_consumer_min_long_polling_timeout_millis: int = bounded(5_000, 0, DAY_MS)
    #: A receive waits at most so long for messages.
    grpc_client_consumer_max_long_polling_timeout_millis: int = bounded(20_000, 0, DAY_MS)
    #: What clients are told to receive at once.
    grpc_client_consumer_long_polling_batch_size: int = bounded(32, 1, 1024)
    #: Messages stay invisible while push consumers are at work on them.
    enable_proxy_auto_renew: bool = True
    #: A message is renewed no more after so many failures.
    max_renew_retry_times: int = bounded(3, 0, MAX_INT)
    #: So long before its time is over it is renewed.
    renew_ahead_time_millis: int = bounded(10_000, 0, DAY_MS)
    #: A message is renewed for so long, and then counts as failed.
    renew_max_time_millis: int = bounded(3 * _HOUR_MS, 0, 1 << 50)
    #: How often messages are looked for that must be renewed.
    renew_schedule_period_millis: int = bounded(5_000, 10, DAY_MS)
    #: When a client is gone, its messages come again after so long.
    invisible_time_millis_when_clear: int = bounded(1_000, 0, DAY_MS)

    # -- what clients are told ----------------------------------------------------------------------------------
    #: What producers are told: how often they try to send.
    grpc_client_producer_max_attempts: int = bounded(3, 1, MAX_INT)
    #: What producers are told: the first pause between attempts.
    grpc_client_producer_backoff_initial_millis: int = bounded(10, 0, DAY_MS)
    #: What producers are told: the longest pause.
    grpc_client_producer_backoff_max_millis: int = bounded(1_000, 0, DAY_MS)
    #: What producers are told: each pause is so many times the one before.
    grpc_client_producer_backoff_multiplier: int = bounded(2, 1, 100)

    # -- access control -----------------------------------------------------------------------------------------
    #: Users sign their calls; who they are and what they may do is asked of the brokers of rocketMQClusterName.
    authentication_enabled: bool = False
    #: Users may do what their policies say.
    authorization_enabled: bool = False
    #: Requests that need neither, by their full names, with commas between them.
    authentication_whitelist: str = ""
    #: As authenticationWhitelist, for rights.
    authorization_whitelist: str = ""
    #: {"accessKey": ..., "secretKey": ...}: a super user of the brokers', as whom the proxy itself asks them.
    inner_client_authentication_credentials: str = field(default="", repr=False)

    # -- what is remembered -------------------------------------------------------------------------------------
    #: A client that was silent for so long is gone.
    channel_expired_timeout: int = bounded(120_000, 1000, DAY_MS)
    #: What is known of a topic is asked for anew after so long, s.
    topic_config_cache_refresh_seconds: int = bounded(20, 1, MAX_INT)
    #: Topics that are known at once.
    topic_config_cache_max_num: int = bounded(20_000, 1, MAX_INT)
    #: The same of groups, s.
    subscription_group_config_cache_refresh_seconds: int = bounded(20, 1, MAX_INT)
    #: Groups that are known at once.
    subscription_group_config_cache_max_num: int = bounded(20_000, 1, MAX_INT)
    #: The same of users, s.
    user_cache_refresh_seconds: int = bounded(20, 1, MAX_INT)
    #: Users that are known at once.
    user_cache_max_num: int = bounded(20_000, 1, MAX_INT)
    #: The same of users' policies, s.
    acl_cache_refresh_seconds: int = bounded(20, 1, MAX_INT)
    #: Users whose policies are known at once.
    acl_cache_max_num: int = bounded(20_000, 1, MAX_INT)
    #: How often brokers are told of clients, s.
    transaction_heartbeat_period_second: int = bounded(20, 1, MAX_INT)
    #: A half message is remembered for so long.
    transaction_data_expire_millis: int = bounded(30_000, 100, DAY_MS)
    #: How many halves of one transaction id are remembered.
    transaction_data_max_num: int = bounded(15, 1, MAX_INT)
    #: A client has so long for an answer to what a broker asks, s.
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
