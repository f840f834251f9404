"""ClusterPorts: the ports of a cluster on this machine. They are derived from its NameServer's port."""

from __future__ import annotations

from dataclasses import dataclass

#: The default port of RocketMQ's NameServer.
DEFAULT_PORT = 9876


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """The ports of all servers. 0 means a free port."""

    name_server: int
    controller: int
    proxy: int
    proxy_remoting: int
    console: int
    first_broker: int

    def broker(self, number: int, replica: int = 0) -> int:
        """Returns the port of a replica. Brokers are ten ports apart, and the replicas of a broker are two ports apart.

        A master listens for its slaves on the port after its own one.
        """
        return self.first_broker + 10 * number + 2 * replica if self.first_broker else 0


#: RocketMQ's default ports.
_USUAL = ClusterPorts(
    name_server=DEFAULT_PORT, controller=9878, proxy=8081, proxy_remoting=8080, console=8180, first_broker=10_911
)
_FREE = ClusterPorts(name_server=0, controller=0, proxy=0, proxy_remoting=0, console=0, first_broker=0)


def cluster_ports(port: int) -> ClusterPorts:
    """Returns the ports for a NameServer at `port`.

    For 9876, they are RocketMQ's default ports; for 0, free ports; otherwise a range that begins with `port`.
    """
    if port == 0:
        return _FREE
    if port == DEFAULT_PORT:
        return _USUAL
    return ClusterPorts(
        name_server=port,
        proxy=port + 1,
        controller=port + 2,
        proxy_remoting=port + 3,
        console=port + 4,
        first_broker=port + 5,
    )
