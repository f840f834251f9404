"""Controllers and brokers in controller mode as processes.

The controllers are Apache's and this project's, the brokers are Apache's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from servers import START_TIMEOUT_S, Server, call, free_port, gantry_command, java_broker, java_command, start

from gantrymq.config import format_properties
from gantrymq.protocol.bodies.controller import BrokerReplicasInfo, ReplicasInfo
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import decode_json, encode_json

GROUP = "group1"
NAME = "broker-a"


def java_controller(directory: Path) -> Server:
    """Starts Apache's controller as the only member of its group."""
    port, config = _controller_config(directory, mappedFileSize=1 << 24)
    command = java_command(
        "org.apache.rocketmq.controller.ControllerStartup", "-c", str(config), home=directory, options=("-Xmx256m",)
    )
    return _leading(start(command, "Java controller", port, directory))


def gantry_controller(directory: Path) -> Server:
    """Starts this project's controller with the same configuration keys."""
    port, config = _controller_config(directory, bindAddress="127.0.0.1")
    return _leading(start(gantry_command("controller", "-c", str(config)), "gantry controller", port, directory))


def gantry_controllers(directory: Path, etcd_endpoints: str) -> list[Server]:
    """Starts three of this project's controllers with their state in etcd."""
    ports = [free_port() for _ in range(3)]
    peers = ";".join(f"n{i}-127.0.0.1:{port}" for i, port in enumerate(ports))
    made: list[Server] = []
    try:
        for i, port in enumerate(ports):
            home = directory / f"n{i}"
            home.mkdir(parents=True)
            settings = {
                "controllerDLegerGroup": GROUP,
                "controllerDLegerPeers": peers,
                "controllerDLegerSelfId": f"n{i}",
                "etcdEndpoints": etcd_endpoints,
                "bindAddress": "127.0.0.1",
            }
            file = home / "controller.conf"
            file.write_text(format_properties(settings))
            made.append(start(gantry_command("controller", "-c", str(file)), f"gantry controller n{i}", port, home))
    except BaseException:
        for controller in made:
            controller.kill()
        raise
    return made


def is_leader(controller: Server) -> bool:
    if controller.process.poll() is not None:
        return False
    return call(controller.address, RequestCode.CONTROLLER_GET_METADATA_INFO).ext_fields.get("isLeader") == "true"


def gantry_controller_again(controller: Server) -> Server:
    """Restarts a controller after its end."""
    config = controller.directory / "controller.conf"
    command = gantry_command("controller", "-c", str(config))
    return _leading(start(command, controller.name, controller.port, controller.directory))


CONTROLLERS: dict[str, Callable[[Path], Server]] = {"java": java_controller, "gantry": gantry_controller}


def replicated_broker(directory: Path, namesrv: str, controller: str) -> Server:
    """Starts Apache's broker in controller mode, and waits for its registration.

    It acknowledges messages that all in-sync brokers have.
    """
    return java_broker(
        directory,
        namesrv,
        options=("-Xmx512m", "-XX:MaxDirectMemorySize=256m"),
        brokerName=NAME,
        brokerId=-1,
        brokerRole="SLAVE",
        enableControllerMode="true",
        controllerAddr=controller,
        allAckInSyncStateSet="true",
        timerWheelEnable="false",
    )


def sync_state(controller: str) -> ReplicasInfo | None:
    """Returns the brokers' state according to the controller, or None if the controller has no brokers."""
    answer = call(controller, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=encode_json([NAME]))
    if answer.code != ResponseCode.SUCCESS:
        return None
    return decode_json(answer.body, BrokerReplicasInfo).replicas_info_table.get(NAME)


def in_sync(controller: str) -> dict[int, str]:
    """Returns the addresses of the in-sync brokers, by id."""
    state = sync_state(controller)
    return {} if state is None else {replica.broker_id: replica.broker_address for replica in state.in_sync_replicas}


def _controller_config(directory: Path, **more: object) -> tuple[int, Path]:
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = {
        "controllerDLegerGroup": GROUP,
        "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": directory / "state",
        "configStorePath": directory / "controller.properties",
        **more,
    }
    file = directory / "controller.conf"
    file.write_text(format_properties({key: str(value) for key, value in settings.items()}))
    return port, file


def _leading(controller: Server) -> Server:
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        while time.monotonic() < deadline and controller.process.poll() is None:
            # Apache's controller reports that it leads some time before it accepts requests.
            names = {"clusterName": "c", "brokerName": "b"}
            answer = call(controller.address, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, names)
            if answer.code == ResponseCode.SUCCESS:
                return controller
            time.sleep(0.05)
    except BaseException:
        controller.kill()
        raise
    controller.stop()
    raise RuntimeError(f"{controller.name} doesn't lead:\n{controller.log()}")
