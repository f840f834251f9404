"""The Helm chart in deploy/chart: its values, and the objects that it makes.

`helm` renders it if it is on PATH, otherwise `go_template`. kubernetes-validate checks the objects with the schemas of
Kubernetes if it is installed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from go_template import Chart, TemplateError

CHART = Path(__file__).parent.parent / "deploy" / "chart"
HELM = shutil.which("helm")
KUBERNETES = "1.33"

Object = dict[str, Any]

WITH_CONSOLE: Object = {"console__enabled": True, "console__usersSecret": "users"}


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
        ("controller", {"etcdEndpoints": "http://etcd"}),
        ("controller", {"etcdEndpoints": "http://a:2379,http://b:2379"}),
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


def rendered(**settings: Any) -> list[Object]:
    """Renders the chart. In the names of settings, __ replaces the point."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    if HELM is None:
        texts = Chart(CHART, named).render()
        return [
            one for name, text in texts.items() if name.endswith(".yaml") for one in yaml.safe_load_all(text) if one
        ]
    arguments = [f"--set-json={name}={json.dumps(value)}" for name, value in named.items()]
    # A helm that `go install` built assumes Kubernetes 1.20, which the chart rejects.
    command = [HELM, "template", "mq", str(CHART), f"--kube-version={KUBERNETES}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise TemplateError(done.stderr)
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def by_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def config_of(objects: list[Object], name: str) -> dict[str, str]:
    (text,) = by_kind(objects, "ConfigMap")[name]["data"].values()
    return dict(line.split("=", 1) for line in text.splitlines() if line)


@pytest.mark.skipif(HELM is None, reason="helm is not on PATH")
def test_helm_finds_no_fault() -> None:
    assert HELM is not None
    subprocess.run([HELM, "lint", "--strict", str(CHART)], check=True, capture_output=True, timeout=120)


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


def test_selectors_find_the_pods() -> None:
    objects = rendered(**WITH_CONSOLE, metrics__serviceMonitor__enabled=True, broker__replicas=2)
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


def test_one_replica_needs_no_controller() -> None:
    objects = rendered(broker__replicas=1, proxy__enabled=False)
    assert "mq-controller" not in by_kind(objects, "StatefulSet")
    assert "enableControllerMode" not in config_of(objects, "mq-broker")
    assert not by_kind(objects, "Deployment")


def test_several_controllers_need_etcd() -> None:
    with pytest.raises(TemplateError, match=r"set controller\.etcdEndpoints"):
        rendered(controller__replicas=3)
    objects = rendered(controller__replicas=3, controller__etcdEndpoints="http://etcd:2379")
    config = config_of(objects, "mq-controller")
    assert config["controllerDLegerPeers"] == ";".join(f"n{n}-mq-controller-{n}.mq-controller:9878" for n in range(3))


def test_controllers_reach_etcd_at_the_ports_of_its_urls() -> None:
    endpoints = "http://a:2379;https://b.example:12379/;http://[fd00::2]:2379"
    given = values()
    given["controller"]["etcdEndpoints"] = endpoints
    jsonschema.validate(given, schema())
    policy = by_kind(rendered(controller__etcdEndpoints=endpoints), "NetworkPolicy")["mq-controller"]["spec"]
    assert {"ports": [{"port": 2379}, {"port": 12379}]} in policy["egress"]


def test_clients_cannot_connect_to_controllers() -> None:
    policies = by_kind(rendered(**WITH_CONSOLE), "NetworkPolicy")
    clients = {"podSelector": {"matchLabels": values()["clientLabels"]}}
    admit = {name for name, one in policies.items() if any(clients in rule["from"] for rule in one["spec"]["ingress"])}
    assert admit == {"mq-namesrv", "mq-broker", "mq-proxy", "mq-console"}


@pytest.mark.parametrize(
    ("settings", "restarted"),
    [
        ({"namesrv__replicas": 3}, {"mq-broker-a", "mq-broker-b", "mq-proxy"}),
        (
            {"controller__replicas": 3, "controller__etcdEndpoints": "http://etcd:2379"},
            {"mq-broker-a", "mq-broker-b", "mq-controller"},
        ),
        ({"broker__clusterName": "other"}, {"mq-broker-a", "mq-broker-b", "mq-proxy"}),
        ({"namesrv__config": {"clusterTest": "true"}}, {"mq-namesrv"}),
        ({"proxy__config": {"grpcThreadPoolNums": 4}}, {"mq-proxy"}),
        ({"controller__storage": "2Gi", "broker__resources": {}}, set()),
    ],
)
def test_a_changed_configuration_restarts_its_servers(settings: Object, restarted: set[str]) -> None:
    """Pods restart if their template changes, and read the configuration only when they start."""

    def checksums(objects: list[Object]) -> Object:
        sets = by_kind(objects, "StatefulSet") | by_kind(objects, "Deployment")
        return {
            name: one["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for name, one in sets.items()
        }

    before, after = checksums(rendered()), checksums(rendered(**settings))
    assert {name for name in before if before[name] != after[name]} == restarted


def test_pods_are_unprivileged() -> None:
    for one in rendered(**WITH_CONSOLE):
        if one["kind"] in ("StatefulSet", "Deployment"):
            pod = one["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["automountServiceAccountToken"] is False
            (container,) = pod["containers"]
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            # A server writes its self-signed certificate to /tmp.
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
            assert {"name": "tmp", "emptyDir": {}} in pod["volumes"]
            assert {"readinessProbe", "livenessProbe", "resources"} <= container.keys()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"broker__replicas": 1, "proxy__enabled": False},
        WITH_CONSOLE | {"image__pullSecrets": ["one"], "broker__storageClass": "fast"},
        {"controller__replicas": 3, "controller__etcdEndpoints": "http://etcd:2379"},
    ],
)
def test_kubernetes_accepts_the_objects(settings: Object) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for one in rendered(**settings):
        validate(one, KUBERNETES, strict=True)


@pytest.mark.parametrize("server", ["namesrv", "controller", "broker", "proxy"])
def test_servers_know_the_configuration(server: str, tmp_path: Path) -> None:
    ((file, text),) = by_kind(rendered(), "ConfigMap")[f"mq-{server}"]["data"].items()
    (tmp_path / file).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq.cli", server, "-c", file, "-p"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "not used here" not in done.stderr
