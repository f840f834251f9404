"""Tests of the ports of a cluster on this machine."""

from __future__ import annotations

import itertools

from gantrymq.testing.cluster_ports import ClusterPorts, cluster_ports

#: The limits of `gantry up`.
BROKERS = 100
REPLICAS = 5


def all_ports(ports: ClusterPorts) -> list[int]:
    brokers = [ports.broker(*each) for each in itertools.product(range(BROKERS), range(REPLICAS))]
    # A master listens for its slaves on the port after its own one.
    others = [ports.name_server, ports.controller, ports.proxy, ports.proxy_remoting, ports.console]
    return [*others, *brokers, *(port + 1 for port in brokers)]


def test_9876_has_the_usual_ports() -> None:
    ports = cluster_ports(9876)
    assert (ports.name_server, ports.controller, ports.proxy, ports.proxy_remoting) == (9876, 9878, 8081, 8080)
    assert ports.console == 8180
    assert [ports.broker(0), ports.broker(0, 1), ports.broker(1)] == [10911, 10913, 10921]


def test_another_port_moves_all_into_one_range() -> None:
    for port in (1, 1000, 9870, 50_000):
        used = all_ports(cluster_ports(port))
        assert len(set(used)) == len(used)
        assert (min(used), max(used)) == (port, port + 5 + 10 * BROKERS - 1)


def test_0_selects_free_ports() -> None:
    ports = cluster_ports(0)
    assert {ports.name_server, ports.controller, ports.proxy, ports.console, ports.broker(3, 2)} == {0}
