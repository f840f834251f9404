"""Tests of docs/deployment.md, deploy/ and examples/kubernetes that need no systemd, container or cluster."""

from __future__ import annotations

import configparser
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ports import free_port

from gantrymq import Message, Producer, SyncProducer
from gantrymq.config import parse_properties
from gantrymq.console.logins import FileLogin
from gantrymq.testing.embedded import EmbeddedCluster

ROOT = Path(__file__).parent.parent.parent
KUBERNETES = ROOT / "examples" / "kubernetes"
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
TEXT = (ROOT / "docs" / "deployment.md").read_text()
#: {kind: apiVersion} of the objects in the manifests.
KINDS = {
    "ConfigMap": "v1",
    "Service": "v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "StatefulSet": "apps/v1",
}
#: RFC 1123 labels, as names of objects, ports and volumes must be. Names of ports have at most 15 characters.
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi|Ti)?")
#: Allowed fields of each object. Kubernetes rejects a misspelled field or, worse, ignores it.
FIELDS = {
    "StatefulSet": {"serviceName", "replicas", "podManagementPolicy", "selector", "template", "volumeClaimTemplates"},
    "Service": {"clusterIP", "publishNotReadyAddresses", "selector", "ports"},
    "PodDisruptionBudget": {"maxUnavailable", "selector"},
    "NetworkPolicy": {"podSelector", "policyTypes", "ingress", "egress"},
    "pod": {
        "terminationGracePeriodSeconds",
        "automountServiceAccountToken",
        "securityContext",
        "affinity",
        "containers",
        "volumes",
    },
    "container": {
        "name",
        "image",
        "command",
        "args",
        "env",
        "ports",
        "startupProbe",
        "readinessProbe",
        "livenessProbe",
        "resources",
        "securityContext",
        "volumeMounts",
    },
    "probe": {"tcpSocket", "httpGet", "periodSeconds", "timeoutSeconds", "failureThreshold"},
}

Object = dict[str, Any]


def objects(name: str) -> list[Object]:
    return list(yaml.safe_load_all((KUBERNETES / f"{name}.yaml").read_text()))


def of_kind(name: str, kind: str) -> Object:
    (found,) = [each for each in objects(name) if each["kind"] == kind]
    return found


def pod(name: str) -> Object:
    spec: Object = of_kind(name, "StatefulSet")["spec"]["template"]["spec"]
    return spec


def configuration(name: str) -> tuple[str, dict[str, str]]:
    """Returns (file name, keys) of a ConfigMap."""
    ((file, text),) = of_kind(name, "ConfigMap")["data"].items()
    return file, parse_properties(text, source=file)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def known(server: str, text: str, directory: Path) -> None:
    """Fails if a server does not use a key of the configuration or rejects a value."""
    (directory / "file").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq.cli", server, "-c", "file", "-p"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr
    assert "not used here" not in done.stderr


@pytest.mark.parametrize("name", ["namesrv", "broker"])
def test_objects_are_whole_and_fit_together(name: str) -> None:
    found = objects(name)
    assert sorted(each["kind"] for each in found) == sorted(KINDS)
    app = {"app": f"gantrymq-{name}"}
    for each in found:
        kind = each["kind"]
        assert each["apiVersion"] == KINDS[kind]
        assert each.keys() <= {"apiVersion", "kind", "metadata", "spec", "data"}
        assert each["metadata"]["name"] == f"gantrymq-{name}"
        assert LABEL.fullmatch(each["metadata"]["name"])
        if "spec" in each:
            assert each["spec"].keys() <= FIELDS[kind]
    stateful = of_kind(name, "StatefulSet")["spec"]
    service = of_kind(name, "Service")["spec"]
    assert stateful["serviceName"] == of_kind(name, "Service")["metadata"]["name"]
    assert service["clusterIP"] == "None"
    assert service["selector"] == app
    assert stateful["selector"]["matchLabels"] == app
    assert of_kind(name, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == app
    assert stateful["template"]["metadata"]["labels"] == app
    # Kubernetes rejects annotations that are not strings, such as true and 9100.
    assert all(isinstance(text, str) for text in stateful["template"]["metadata"]["annotations"].values())


@pytest.mark.parametrize("name", ["namesrv", "broker"])
def test_a_pod_has_what_it_names(name: str) -> None:
    spec = pod(name)
    assert spec.keys() <= FIELDS["pod"]
    (container,) = spec["containers"]
    assert container.keys() <= FIELDS["container"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert all(LABEL.fullmatch(port) and len(port) <= 15 for port in ports)
    for key, probe in container.items():
        if key.endswith("Probe"):
            assert probe.keys() <= FIELDS["probe"]
            (target,) = [probe[way] for way in ("tcpSocket", "httpGet") if way in probe]
            assert target["port"] in ports
    for port in of_kind(name, "Service")["spec"]["ports"]:
        assert port["port"] == ports[port["targetPort"]]
    stateful = of_kind(name, "StatefulSet")["spec"]
    claims = {each["metadata"]["name"] for each in stateful.get("volumeClaimTemplates", [])}
    volumes = {each["name"] for each in spec["volumes"]} | claims
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    assert {each["configMap"]["name"] for each in spec["volumes"] if "configMap" in each} == {f"gantrymq-{name}"}
    for quantities in container["resources"].values():
        assert all(QUANTITY.fullmatch(str(quantity)) for quantity in quantities.values())
    # The user id is that of the image. The root file system is read-only, except for the mounts.
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == 10001
    assert "USER 10001" in CONTAINERFILE.read_text()
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    # A server writes its self-signed certificate to /tmp.
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
    assert {"name": "tmp", "emptyDir": {}} in spec["volumes"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", ["namesrv", "broker"])
def test_a_policy_opens_the_ports_of_its_pod_alone(name: str) -> None:
    policy = of_kind(name, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == {"app": f"gantrymq-{name}"}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (container,) = pod(name)["containers"]
    opened = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert opened == {each["name"] for each in container["ports"]}
    # Each rule names its sources, so none admits every peer.
    assert all(rule["from"] for rule in policy["ingress"])


def test_a_broker_may_connect_to_the_name_servers() -> None:
    (rule,) = [rule for rule in of_kind("broker", "NetworkPolicy")["spec"]["egress"] if "to" in rule]
    assert rule["to"] == [{"podSelector": of_kind("namesrv", "NetworkPolicy")["spec"]["podSelector"]}]
    accepted = of_kind("namesrv", "NetworkPolicy")["spec"]["ingress"][0]["from"]
    assert {"podSelector": of_kind("broker", "NetworkPolicy")["spec"]["podSelector"]} in accepted


def test_all_that_comes_from_elsewhere_is_pinned() -> None:
    lines = CONTAINERFILE.read_text().splitlines()
    images = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert all(re.fullmatch(r"python:[\w.-]+@sha256:[0-9a-f]{64}", image) for image in images)
    assert len(set(images)) == 1
    workflows = list((ROOT / ".github" / "workflows").glob("*.yml"))
    actions = [line for path in workflows for line in re.findall(r"uses: ([^.].*)", path.read_text())]
    assert actions
    assert all(re.fullmatch(r"[\w/.-]+@[0-9a-f]{40} # v[\d.]+", action) for action in actions)


def test_the_image_has_the_locked_versions() -> None:
    everything, image = (
        dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements.lock", "requirements-server.lock")
    )
    assert image.items() <= everything.items()
    assert {"hatchling", "cryptography", "uvicorn", "protobuf", "httpx"} <= image.keys()
    text = (ROOT / "requirements-server.lock").read_text()
    assert text.count("--hash=sha256:") >= len(image)


def test_the_build_context_has_what_the_package_is_built_from() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    needed = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "requirements-server.lock"}
    assert kept == {"src", "examples/pipelines", "deploy/healthcheck.py", *needed}
    assert all((ROOT / path).exists() for path in kept)


@pytest.mark.parametrize("name", ["namesrv", "broker"])
def test_configuration_fits_the_pod(name: str, tmp_path: Path) -> None:
    file, keys = configuration(name)
    known(name, of_kind(name, "ConfigMap")["data"][file], tmp_path)
    (container,) = pod(name)["containers"]
    ports = {each["name"]: str(each["containerPort"]) for each in container["ports"]}
    assert (keys["listenPort"], keys["metricsPort"]) == (ports["remoting"], ports["metrics"])
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert f"{mounts['configuration']}/{file}" in " ".join(container["args"])
    written = [value for key, value in keys.items() if key.endswith(("Path", "Dir"))]
    assert written
    assert all(path.startswith(mounts["data"] + "/") for path in written)


def test_the_brokers_list_has_all_name_servers() -> None:
    _, keys = configuration("broker")
    stateful, service = of_kind("namesrv", "StatefulSet"), of_kind("namesrv", "Service")
    port = configuration("namesrv")[1]["listenPort"]
    name = f"{stateful['metadata']['name']}-{{}}.{service['metadata']['name']}:{port}"
    assert keys["namesrvAddr"].split(";") == [name.format(n) for n in range(stateful["spec"]["replicas"])]
    assert pod("broker")["containers"][0]["image"] == pod("namesrv")["containers"][0]["image"]


@pytest.fixture
def name_server() -> Iterator[str]:
    with EmbeddedCluster() as cluster:
        yield cluster.name_server


def test_the_start_up_script_of_a_broker_runs(name_server: str, tmp_path: Path) -> None:
    """Runs the script as a plain process with other directories and ports.

    The script appends keys to the configuration file. The last value of a key counts.
    """
    (container,) = pod("broker")["containers"]
    data, etc = tmp_path / "data", tmp_path / "etc"
    data.mkdir()
    etc.mkdir()
    file, _ = configuration("broker")
    text = of_kind("broker", "ConfigMap")["data"][file].replace("/var/lib/gantrymq", str(data))
    text = re.sub("namesrvAddr=.*", f"namesrvAddr={name_server}", text)
    (etc / file).write_text(re.sub("(listenPort|metricsPort)=.*", r"\1=0", text) + "autoCreateTopicEnable=true\n")
    gantry = tmp_path / "gantry"
    gantry.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gantrymq.cli "$@"\n')
    gantry.chmod(0o755)
    script = container["args"][0].replace("/var/lib/gantrymq", str(data)).replace("/etc/gantrymq", str(etc))
    given = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]}
    pods_own = {"metadata.name": "gantrymq-broker-1", "status.podIP": "127.0.0.1"}
    environment = {name: pods_own[path] for name, path in given.items()}
    process = subprocess.Popen(
        [*container["command"], script],
        env=os.environ | environment | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("broker gantrymq-broker-1 ready at ")
        with SyncProducer(Producer(name_server, "shop")) as producer:
            sent = {producer.send(Message("TBW102", b"one")).queue.broker_name for _ in range(20)}
        assert "gantrymq-broker-1" in sent
        # The script replaces the shell by the broker (`exec`), so the broker receives the signal.
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_recipe_in_the_text_is_the_file() -> None:
    (shown,) = blocks("dockerfile")
    file = [line for line in CONTAINERFILE.read_text().splitlines() if not line.startswith("#")]
    assert shown.splitlines() == file
    # The image copies the files of the package's build and starts a command that exists.
    assert 'ENTRYPOINT ["gantry"]' in file
    assert (ROOT / "pyproject.toml").exists()


def test_the_health_check_notices_a_server(tmp_path: Path) -> None:
    """A server that responds is healthy. One that is not there, or does not respond, is not."""
    check = [sys.executable, str(ROOT / "deploy" / "healthcheck.py")]
    port = free_port()
    environment = os.environ | {"GANTRY_HEALTH_PORT": str(port)}
    assert subprocess.run(check, env=environment, capture_output=True, timeout=60).returncode == 1
    with socket.create_server(("127.0.0.1", port)):
        done = subprocess.run(check, env=environment, capture_output=True, timeout=60, text=True)
        assert done.returncode == 1
        assert f"http://127.0.0.1:{port}/metrics" in done.stderr
    (tmp_path / "namesrv.conf").write_text(f"listenPort=0\nmetricsPort={port}\nkvConfigPath={tmp_path}/kv.json\n")
    server = subprocess.Popen(
        [sys.executable, "-m", "gantrymq.cli", "namesrv", "-c", str(tmp_path / "namesrv.conf")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        assert "ready at" in server.stdout.readline()
        # It does not use the proxy of the environment.
        environment |= {"http_proxy": f"http://127.0.0.1:{free_port()}", "no_proxy": ""}
        assert subprocess.run(check, env=environment, timeout=60).returncode == 0
    finally:
        server.kill()
        server.communicate()


COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())


@pytest.mark.parametrize("server", ["namesrv", "broker"])
def test_configuration_of_the_compose_file_is_known(server: str, tmp_path: Path) -> None:
    known(server, COMPOSE["configs"][server]["content"], tmp_path)


def test_the_compose_file_fits_together() -> None:
    configs = {name: one["content"] for name, one in COMPOSE["configs"].items()}
    broker, namesrv = (parse_properties(configs[name], source=name) for name in ("broker", "namesrv"))
    proxy = json.loads(configs["proxy"])
    assert broker["namesrvAddr"] == proxy["namesrvAddr"] == f"127.0.0.1:{namesrv['listenPort']}"
    services = COMPOSE["services"]
    # The ports of all servers, and only on this machine.
    console = {"8180"}
    listening = {namesrv["listenPort"], broker["listenPort"], *console}
    listening |= {str(proxy[key]) for key in ("grpcServerPort", "remotingListenPort")}
    published = [port.split(":") for port in services["network"]["ports"]]
    assert {(host, outside) for host, outside, _ in published} == {("127.0.0.1", port) for port in listening}
    assert all(outside == inside for _, outside, inside in published)
    servers = {name: one for name, one in services.items() if name != "network"}
    health = {name: one.get("environment", {}).get("GANTRY_HEALTH_PORT", "9100") for name, one in servers.items()}
    assert health == {
        "namesrv": namesrv["metricsPort"],
        "broker": broker["metricsPort"],
        "proxy": str(proxy["metricsPromExporterPort"]),
        "console": "8180",
    }
    # The network has no health check, because its program is not a server.
    assert services["network"]["healthcheck"] == {"disable": True}
    for service in services.values():
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]
    for service in servers.values():
        assert service["network_mode"] == "service:network"
        for config in service["configs"]:
            assert config["source"] in configs
            assert config["target"] in service["command"]
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in COMPOSE["volumes"]


async def test_the_user_of_the_compose_file_logs_in(tmp_path: Path) -> None:
    # Compose replaces $$ by $.
    (tmp_path / "users").write_text(COMPOSE["configs"]["users"]["content"].replace("$$", "$"))
    login = FileLogin(tmp_path / "users", [])
    assert await login.enter("admin", "gantry") is not None
    assert await login.enter("admin", "another") is None


def test_units_name_what_there_is() -> None:
    (text,) = blocks("ini")
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    command = unit["Service"]["ExecStart"].split()
    assert command[0].endswith("/bin/gantry")
    assert command[1:3] == ["broker", "-c"]
    assert unit["Service"]["Type"] == "exec"
    # In seconds. More than a server needs to stop: gantrymq.cli.servers.STOP_TIMEOUT_S.
    assert int(unit["Service"]["TimeoutStopSec"]) > 30


def test_configuration_in_the_text_is_known(tmp_path: Path) -> None:
    for text in blocks("properties"):
        known("broker", text, tmp_path)


def test_what_to_watch_is_there() -> None:
    watched = set(re.findall(r"^\| `((?:rocketmq|gantry)_\w+)`", TEXT, re.MULTILINE))
    assert watched
    assert watched <= set(re.findall(r"`((?:rocketmq|gantry)_\w+)`", (ROOT / "docs" / "broker.md").read_text()))


def test_it_says_what_never_ran() -> None:
    assert TEXT.count("not tested in a container runtime or on a cluster") == 1
    assert "never ran on a cluster" in (KUBERNETES / "README.md").read_text()
