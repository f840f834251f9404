"""The proxy's configuration: the keys of Java's rmq-proxy.json that apply to this proxy (`ProxyConfig`)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gantrymq import metrics_export
from gantrymq.client.credentials import Credentials
from gantrymq.config import DAY_MS, MAX_INT, bounded, read_properties
from gantrymq.errors import ConfigError
from gantrymq.protocol.delay_levels import DEFAULT_DELAY_LEVELS
from gantrymq.remoting import tls
from gantrymq.remoting.tls import TlsConfig

_HOUR_MS = 3600 * 1000


@dataclass
class ProxyConfig(metrics_export.MetricsConfig, TlsConfig):
    """The proxy's configuration. Defaults are Java's.

    Times are in ms unless the name has another unit. A maximum of 0 means no limit. `tls.enable` and `tls.client.*`
    apply to connections to brokers and NameServers.
    """

    #: Addresses of the NameServers, separated by ;.
    namesrv_addr: str = ""
    #: The cluster whose brokers return groups, users and policies. Groups, users and policies must be the same on all
    #: brokers of the cluster.
    rocket_mq_cluster_name: str = field(default="DefaultCluster", metadata={"key": "rocketMQClusterName"})
    #: Cluster name in the labels of the proxy's metrics.
    proxy_cluster_name: str = "DefaultCluster"
    #: Name of the proxy in the labels of its metrics. Empty: the host name.
    proxy_name: str = ""
    #: The address on which the proxy listens.
    bind_address: str = "0.0.0.0"
    #: Port for gRPC clients. 0 selects any free port.
    grpc_server_port: int = bounded(8081, 0, 65535)
    #: If true, routes contain the port to which the client connected; otherwise grpcServerPort.
    use_endpoint_port_from_request: bool = False
    #: Port for clients of the remoting protocol. 0 selects any free port.
    remoting_listen_port: int = bounded(8080, 0, 65535)
    #: Host of the proxy in routes for remoting clients. Empty: the address to which the client connected.
    remoting_access_addr: str = ""
    #: If true, remotingListenPort also serves gRPC.
    enable_remoting_local_proxy_grpc: bool = True
    #: If true, other processes of this proxy listen on the same ports. `--processes` sets this value.
    shared_ports: bool = False
    # The next four keys have other names than the keys of brokers and NameServers. If this key is true and no
    #: certificate is configured, the proxy creates a certificate for the first client that uses TLS.
    tls_test_mode_enable: bool = True
    #: File with the private key of the proxy's certificate, PEM.
    tls_server_key_path: Path | None = field(default=None, metadata={"key": "tlsKeyPath"})
    #: Password of this private key, if it is encrypted.
    tls_server_key_password: str | None = field(default=None, repr=False, metadata={"key": "tlsKeyPassword"})
    #: File with the proxy's certificate and the certificates of its issuers, PEM.
    tls_server_cert_path: Path | None = field(default=None, metadata={"key": "tlsCertPath"})

    #: File with one line for each call or request: time (ms), peer, client id, method, result, duration (ms).
    access_log_path: Path | None = None

    # -- requests -----------------------------------------------------------------------------------------------
    #: Largest request, bytes.
    grpc_max_inbound_message_size: int = bounded(130 * 1024 * 1024, 1024, MAX_INT)
    #: A connection is closed after this time without received bytes, unless a call is open and a ping is answered.
    grpc_client_idle_time_mills: int = bounded(120_000, 1000, DAY_MS)
    #: Largest message body, bytes. 0 means no limit.
    max_message_size: int = bounded(4 * 1024 * 1024, 0, MAX_INT)
    #: If true, the proxy rejects messages without a body.
    enable_message_body_empty_check: bool = True
    #: Largest total size of the user properties, tag and keys of a message, bytes.
    max_user_property_size: int = bounded(16 * 1024, 0, MAX_INT)
    #: Largest number of user properties of a message.
    user_property_max_num: int = bounded(128, 0, MAX_INT)
    #: A message group must be shorter than this, bytes. 0 means no limit.
    max_message_group_size: int = bounded(64, 0, MAX_INT)
    #: Longest name of a lite topic, bytes.
    max_lite_topic_size: int = bounded(64, 1, 255)
    #: Longest delay of a message. 0 means no limit.
    max_delay_time_mills: int = bounded(DAY_MS, 0, 1 << 50)
    #: Longest time that a producer may set before the first check of a transaction, s. 0 means no limit.
    max_transaction_recovery_second: int = bounded(3600, 0, MAX_INT)
    #: If true, the proxy rejects a message whose type differs from the type of its topic.
    enable_topic_message_type_check: bool = True
    #: If true, the proxy converts a delivery time to a delay level for the broker.
    use_delay_level: bool = False
    #: Delays of the levels.
    message_delay_level: str = DEFAULT_DELAY_LEVELS

    # -- consumers ----------------------------------------------------------------------------------------------
    #: First invisible duration of a message that the proxy renews.
    default_invisible_time_mills: int = bounded(60_000, 0, 1 << 50)
    #: Shortest invisible duration in a ReceiveMessage.
    min_invisible_time_mills_for_recv: int = bounded(10_000, 0, 1 << 50)
    #: Longest invisible duration that a client may request. 0 means no limit.
    max_invisible_time_mills: int = bounded(12 * _HOUR_MS, 0, 1 << 50)
    #: Shortest long-polling time of a ReceiveMessage.
    grpc_client_consumer_min_long_polling_timeout_millis: int = bounded(5_000, 0, DAY_MS)
    #: Longest long-polling time of a ReceiveMessage.
    grpc_client_consumer_max_long_polling_timeout_millis: int = bounded(20_000, 0, DAY_MS)
    #: Setting for consumers: number of messages to receive at once.
    grpc_client_consumer_long_polling_batch_size: int = bounded(32, 1, 1024)
    #: If true, the proxy keeps messages invisible while push consumers process them.
    enable_proxy_auto_renew: bool = True
    #: After this many failures in a row, the proxy stops renewing a message.
    max_renew_retry_times: int = bounded(3, 0, MAX_INT)
    #: Time before the end of the invisible duration at which a message is renewed.
    renew_ahead_time_millis: int = bounded(10_000, 0, DAY_MS)
    #: Longest time for which the proxy renews a message. The message is then redelivered as after a failure.
    renew_max_time_millis: int = bounded(3 * _HOUR_MS, 0, 1 << 50)
    #: Interval between two rounds of renewals.
    renew_schedule_period_millis: int = bounded(5_000, 10, DAY_MS)
    #: Time after which the messages of a disconnected client are redelivered.
    invisible_time_millis_when_clear: int = bounded(1_000, 0, DAY_MS)

    # -- settings for clients -----------------------------------------------------------------------------------
    #: Setting for producers: largest number of attempts of a send.
    grpc_client_producer_max_attempts: int = bounded(3, 1, MAX_INT)
    #: Setting for producers: first delay between two attempts.
    grpc_client_producer_backoff_initial_millis: int = bounded(10, 0, DAY_MS)
    #: Setting for producers: longest delay between two attempts.
    grpc_client_producer_backoff_max_millis: int = bounded(1_000, 0, DAY_MS)
    #: Setting for producers: factor from one delay to the next.
    grpc_client_producer_backoff_multiplier: int = bounded(2, 1, 100)

    # -- access control -----------------------------------------------------------------------------------------
    #: If true, calls must be signed. The brokers of rocketMQClusterName return users and their policies.
    authentication_enabled: bool = False
    #: If true, a request needs the rights in the user's policies.
    authorization_enabled: bool = False
    #: Full names of requests that need no signature, separated by commas.
    authentication_whitelist: str = ""
    #: Full names of requests that need no rights, separated by commas.
    authorization_whitelist: str = ""
    #: {"accessKey": ..., "secretKey": ...} of a super user of the brokers, for the proxy's own requests to brokers.
    inner_client_authentication_credentials: str = field(default="", repr=False)

    # -- caches -------------------------------------------------------------------------------------------------
    #: A client without heartbeats expires after this time.
    channel_expired_timeout: int = bounded(120_000, 1000, DAY_MS)
    #: Age at which a cached topic is requested again, s.
    topic_config_cache_refresh_seconds: int = bounded(20, 1, MAX_INT)
    #: Largest number of cached topics.
    topic_config_cache_max_num: int = bounded(20_000, 1, MAX_INT)
    #: Age at which a cached group is requested again, s.
    subscription_group_config_cache_refresh_seconds: int = bounded(20, 1, MAX_INT)
    #: Largest number of cached groups.
    subscription_group_config_cache_max_num: int = bounded(20_000, 1, MAX_INT)
    #: Age at which a cached user is requested again, s.
    user_cache_refresh_seconds: int = bounded(20, 1, MAX_INT)
    #: Largest number of cached users.
    user_cache_max_num: int = bounded(20_000, 1, MAX_INT)
    #: Age at which the cached policies of a user are requested again, s.
    acl_cache_refresh_seconds: int = bounded(20, 1, MAX_INT)
    #: Largest number of users whose policies are cached.
    acl_cache_max_num: int = bounded(20_000, 1, MAX_INT)
    #: Interval of the heartbeats to brokers for the proxy's clients, s.
    transaction_heartbeat_period_second: int = bounded(20, 1, MAX_INT)
    #: Time for which the position of a half message is cached.
    transaction_data_expire_millis: int = bounded(30_000, 100, DAY_MS)
    #: Largest number of cached half messages of one transaction id.
    transaction_data_max_num: int = bounded(15, 1, MAX_INT)
    #: Timeout of a client's response to a broker's request, s.
    grpc_proxy_relay_request_timeout_in_seconds: int = bounded(5, 1, MAX_INT)

    def credentials(self) -> Credentials | None:
        """Returns the keys for the proxy's own requests; None if not configured. Raises ConfigError if invalid."""
        if not self.inner_client_authentication_credentials.strip():
            return None
        try:
            # In Java's file, the value is a string that contains JSON. This proxy also accepts a JSON object.
            keys: Any = json.loads(self.inner_client_authentication_credentials)
            return Credentials(str(keys["accessKey"]), str(keys["secretKey"]))
        except (ValueError, TypeError, KeyError):
            # The message omits the value, which is secret.
            raise ConfigError(
                'innerClientAuthenticationCredentials must be {"accessKey": ..., "secretKey": ...}'
            ) from None


#: Keys with secret values, which must not be printed.
SECRET_KEYS = (
    frozenset({"innerClientAuthenticationCredentials", "tlsKeyPassword"}) | tls.SECRET_KEYS | metrics_export.SECRET_KEYS
)


def load_json(path: Path) -> dict[str, str]:
    """Returns the keys and text values of a file such as rmq-proxy.json. Raises ConfigError if it is no JSON object."""
    try:
        values: Any = json.loads(read_properties(path))
    except ValueError as e:
        raise ConfigError(f"{path} is no JSON: {e}") from e
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: an object with keys and values is expected")
    return {key: _text(value) for key, value in values.items() if value is not None}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
