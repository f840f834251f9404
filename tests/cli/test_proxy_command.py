"""Tests of `gantry proxy` and `gantry up --proxy`: configuration, and a gRPC message through separate processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import grpc

from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.testing.processes import ProcessCluster


def test_its_keys_are_those_of_rmq_proxy_json(tmp_path: Path) -> None:
    config = tmp_path / "rmq-proxy.json"
    config.write_text(json.dumps({"grpcServerPort": 9999, "useDelayLevel": True, "namesrvAddr": "h:1", "unknown": 1}))
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq.cli", "proxy", "-pc", config, "-n", "h:2", "-p"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    settings = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert settings["grpcServerPort"] == "9999"
    assert settings["useDelayLevel"] == "true"
    assert settings["namesrvAddr"].replace("\\", "") == "h:2"
    assert settings["rocketMQClusterName"] == "DefaultCluster"
    assert "not used here: unknown" in done.stderr


def test_keys_that_are_not_used_are_named_once_by_all_processes(tmp_path: Path) -> None:
    config = tmp_path / "rmq-proxy.json"
    config.write_text(json.dumps({"grpcServerPort": 0, "remotingListenPort": 0, "namesrvAddr": "h:1", "unknown": 1}))
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq.cli", "proxy", "-pc", config, "--processes", "2", "--stop-on-eof"],
        input="",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "ready at" in done.stdout
    assert done.stderr.count("not used here: unknown") == 1


def test_a_proxy_without_name_servers_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq.cli", "proxy"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "gantry: no NameServer given: pass it with '-n', or as namesrvAddr in the configuration\n"


def test_a_message_through_processes(tmp_path: Path) -> None:
    began = time.monotonic()
    with ProcessCluster(tmp_path, proxy=True) as cluster:
        assert cluster.proxy is not None
        assert [server.name for server in cluster.servers] == ["namesrv", "broker-a", "proxy"]
        with grpc.insecure_channel(cluster.proxy.address) as channel:
            query = channel.unary_unary(
                "/apache.rocketmq.v2.MessagingService/QueryRoute",
                request_serializer=rpc_pb.QueryRouteRequest.SerializeToString,
                response_deserializer=rpc_pb.QueryRouteResponse.FromString,
            )
            request = rpc_pb.QueryRouteRequest(topic=pb.Resource(name="DefaultCluster"))
            response = query(request, metadata=[("x-mq-client-id", "c")], timeout=20)
            assert response.status.code == pb.OK
        assert time.monotonic() - began < 60
    assert "Traceback" not in cluster.proxy.log_path.read_text()
