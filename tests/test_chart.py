"""The Helm chart in deploy/chart. Without `helm` on PATH, only its values are checked."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

CHART = Path(__file__).parent.parent / "deploy" / "chart"
HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not on PATH")

Object = dict[str, Any]


def values() -> Object:
    found: Object = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def schema() -> Object:
    found: Object = json.loads((CHART / "values.schema.json").read_text())
    return found


def test_the_default_values_fit_the_schema() -> None:
    jsonschema.Draft7Validator.check_schema(schema())
    jsonschema.validate(values(), schema())


@pytest.mark.parametrize(
    ("server", "wrong"),
    [
        ("broker", {"replicas": 0}),
        ("broker", {"names": []}),
        ("broker", {"names": ["Upper"]}),
        ("broker", {"storage": "much"}),
        ("broker", {"fileReservedTime": "72"}),
        ("broker", {"config": {"fileReservedTime": 72}}),
        ("console", {"enabled": True}),
    ],
)
def test_the_schema_rejects(server: str, wrong: Object) -> None:
    given = values()
    given[server] |= wrong
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(given, schema())


def test_every_value_is_used() -> None:
    """A value that no template uses would have no effect."""
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values((?:\.\w+)+)", text))
    for section, of_section in values().items():
        for name in of_section if section != "clientLabels" else ():
            path = f".{section}.{name}"
            is_used = any(one == path or one.startswith(f"{path}.") or one == f".{section}" for one in used)
            assert is_used or name in ("storage", "storageClass"), path


def rendered(*settings: str) -> list[Object]:
    assert HELM is not None
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    done = subprocess.run(
        [HELM, "template", "mq", str(CHART), *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def by_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def config_of(objects: list[Object], name: str) -> dict[str, str]:
    (text,) = by_kind(objects, "ConfigMap")[name]["data"].values()
    return dict(line.split("=", 1) for line in text.splitlines() if line)


@needs_helm
def test_helm_finds_no_fault() -> None:
    assert HELM is not None
    subprocess.run([HELM, "lint", "--strict", str(CHART)], check=True, capture_output=True, timeout=120)


@needs_helm
def test_brokers_with_replicas_have_a_controller() -> None:
    objects = rendered()
    sets = by_kind(objects, "StatefulSet")
    assert {name: one["spec"]["replicas"] for name, one in sets.items()} == {
        "mq-namesrv": 2,
        "mq-controller": 1,
        "mq-broker-a": 3,
        "mq-broker-b": 3,
    }
    assert by_kind(objects, "Deployment").keys() == {"mq-proxy"}
    broker = config_of(objects, "mq-broker")
    assert broker["enableControllerMode"] == "true"
    assert broker["controllerAddr"] == "mq-controller-0.mq-controller:9878"
    assert broker["namesrvAddr"] == "mq-namesrv-0.mq-namesrv:9876;mq-namesrv-1.mq-namesrv:9876"
    assert by_kind(objects, "PodDisruptionBudget").keys() == {*sets, "mq-proxy"}
    assert by_kind(objects, "NetworkPolicy").keys() == {"mq-namesrv", "mq-controller", "mq-broker", "mq-proxy"}
    assert not by_kind(objects, "ServiceMonitor")


@needs_helm
def test_selectors_find_the_pods() -> None:
    objects = rendered(
        "console.enabled=true", "console.usersSecret=users", "metrics.serviceMonitor.enabled=true", "broker.replicas=2"
    )
    pods = [
        one["spec"]["template"]["metadata"]["labels"] for one in objects if one["kind"] in ("StatefulSet", "Deployment")
    ]
    assert len(pods) == 6
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            selector, count = spec["selector"], 1
        elif one["kind"] == "PodDisruptionBudget":
            selector, count = spec["selector"]["matchLabels"], 1
        elif one["kind"] == "NetworkPolicy":
            selector, count = spec["podSelector"]["matchLabels"], 1
        else:
            continue
        found = [labels for labels in pods if selector.items() <= labels.items()]
        count = 2 if one["metadata"]["name"] == "mq-broker" else count
        assert len(found) == count, one["metadata"]["name"]
    (monitor,) = by_kind(objects, "ServiceMonitor").values()
    monitored = [
        one["metadata"]["name"]
        for one in objects
        if one["kind"] == "Service"
        and monitor["spec"]["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
        and any(port["name"] == "metrics" for port in one["spec"]["ports"])
    ]
    assert sorted(monitored) == ["mq-broker", "mq-controller", "mq-namesrv", "mq-proxy"]


@needs_helm
def test_one_replica_needs_no_controller() -> None:
    objects = rendered("broker.replicas=1", "proxy.enabled=false")
    assert "mq-controller" not in by_kind(objects, "StatefulSet")
    assert "enableControllerMode" not in config_of(objects, "mq-broker")
    assert not by_kind(objects, "Deployment")


@needs_helm
def test_several_controllers_need_etcd() -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        rendered("controller.replicas=3")
    assert "set controller.etcdEndpoints" in failed.value.stderr
    objects = rendered("controller.replicas=3", "controller.etcdEndpoints=http://etcd:2379")
    config = config_of(objects, "mq-controller")
    assert config["controllerDLegerPeers"] == ";".join(f"n{n}-mq-controller-{n}.mq-controller:9878" for n in range(3))


@needs_helm
def test_pods_are_unprivileged() -> None:
    for one in rendered("console.enabled=true", "console.usersSecret=users"):
        if one["kind"] in ("StatefulSet", "Deployment"):
            pod = one["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["automountServiceAccountToken"] is False
            (container,) = pod["containers"]
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {"readinessProbe", "livenessProbe", "resources"} <= container.keys()
