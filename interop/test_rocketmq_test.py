"""Apache's integration tests (the tests jar of rocketmq-test) with this project's NameServer, brokers and proxy.

The classes of the jar run unchanged. Only `IntegrationTestBase`, which starts Apache's servers in the JVM of the tests,
is replaced: the class of this name in rocketmq-test/src returns stand-ins for the servers outside.
"""

from __future__ import annotations

import subprocess
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from junit_results import Tests, tests_of
from proxies import gantry_proxy
from servers import BUILDS, JAVA_OPENS, gantry_broker, gantry_namesrv, java_command

pytestmark = pytest.mark.interop(
    feature="Apache's integration tests (rocketmq-test)", clients="suite", servers="gantry"
)

_SUITE = "rocketmq-test"
_PACKAGE = "org.apache.rocketmq.test"
#: The classes of the jar, by package.
_CLASSES = {
    "client.consumer.balance": "NormalMsgDynamicBalanceIT NormalMsgStaticBalanceIT",
    "client.consumer.broadcast.normal": """
        BroadcastNormalMsgNotReceiveIT BroadcastNormalMsgRecvCrashIT BroadcastNormalMsgRecvFailIT
        BroadcastNormalMsgRecvStartLaterIT BroadcastNormalMsgTwoDiffGroupRecvIT NormalMsgTwoSameGroupConsumerIT""",
    "client.consumer.broadcast.order": "OrderMsgBroadcastIT",
    "client.consumer.broadcast.tag": """
        BroadcastTwoConsumerFilterIT BroadcastTwoConsumerSubDiffTagIT BroadcastTwoConsumerSubTagIT""",
    "client.consumer.cluster": "DynamicAddAndCrashIT DynamicAddConsumerIT DynamicCrashConsumerIT",
    "client.consumer.filter": "SqlFilterIT",
    "client.consumer.pop": """
        BatchAckIT NotificationIT PopBigMessageIT PopMessageAndForwardingIT PopOrderlyIT PopPriorityIT PopSubCheckIT""",
    "client.consumer.tag": """
        MulTagSubIT TagMessageWith1ConsumerIT TagMessageWithMulConsumerIT TagMessageWithSameGroupConsumerIT""",
    "client.consumer.topic": "MulConsumerMulTopicIT OneConsumerMulTopicIT",
    "client.producer.async": """
        AsyncSendExceptionIT AsyncSendWithMessageQueueIT AsyncSendWithMessageQueueSelectorIT
        AsyncSendWithOnlySendCallBackIT""",
    "client.producer.batch": "BatchSendIT",
    "client.producer.exception.msg": "ChinaPropIT MessageExceptionIT MessageUserPropIT",
    "client.producer.exception.producer": "ProducerGroupAndInstanceNameValidityIT",
    "client.producer.oneway": "OneWaySendExceptionIT OneWaySendIT OneWaySendWithMQIT OneWaySendWithSelectorIT",
    "client.producer.order": "OrderMsgDynamicRebalanceIT OrderMsgIT OrderMsgRebalanceIT OrderMsgWithTagIT",
    "client.producer.querymsg": "QueryMsgByIdExceptionIT QueryMsgByIdIT QueryMsgByKeyIT",
    "client.producer.transaction": "TransactionalMsgIT",
    "delay": "NormalMsgDelayIT",
    "grpc.v2": "ClusterGrpcIT OutsideProxyGrpcIT",
    "offset": "LagCalculationIT OffsetNotFoundIT OffsetResetForPopIT OffsetResetIT",
    "recall": "RecallWithTraceIT SendAndRecallDelayMessageIT",
    "retry": "PopConsumerRetryIT",
    "route": "CreateAndUpdateTopicIT",
    "smoke": "NormalMessageSendAndRecvIT",
    "tls": "TlsIT TlsMix2IT TlsMixIT",
}
#: The classes of _CLASSES that are not in the jar, but in rocketmq-test/src. They need a proxy.
_WITH_PROXY = {"grpc.v2.OutsideProxyGrpcIT"}
_IN_JVM = "the class runs Apache's servers in its own JVM"
#: Classes of the jar that cannot use servers outside, by package, and the reason.
_NOT_RUN = {
    "autoswitchrole": ("AutoSwitchRoleIntegrationTest", _IN_JVM),
    "container": (
        """
        AddAndRemoveBrokerIT BrokerFailoverIT BrokerMemberGroupIT GetMaxOffsetFromSlaveIT GetMetadataReverseIT
        PopSlaveActingMasterIT PullMultipleReplicasIT PushMultipleReplicasIT RebalanceLockOnSlaveIT
        ScheduleSlaveActingMasterIT ScheduledMessageIT SendMultipleReplicasIT SlaveBrokerIT SyncConsumerOffsetIT
        TransactionMessageIT""",
        _IN_JVM,
    ),
    "dledger": ("DLedgerProduceAndConsumeIT", _IN_JVM),
    "grpc.v2": ("LocalGrpcIT", _IN_JVM),
    "schema": ("SchemaTest", "the class compares Apache's own classes with files"),
    "statictopic": ("StaticTopicIT", "the broker refuses static topics"),
}
#: Number of classes that run at the same time.
_AT_ONCE = 4
#: The number of brokers that the classes expect.
_BROKERS = 3
#: Time limit of a class, in seconds. The slowest class needs five minutes.
_CLASS_TIMEOUT_S = 900
#: The configuration that Apache's IntegrationTestBase gives a broker. Its other keys have no effect in this broker.
_BROKER_CONFIG = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "mappedFileSizeCommitLog": 100 * 1024 * 1024,
    "maxIndexNum": 1000,
    "maxHashSlotNum": 4000,
    "maxTransferCountOnMessageInMemory": 1024,
    "maxTransferCountOnMessageInDisk": 1024,
}


def _names() -> list[str]:
    return [f"{package}.{name}" for package, names in _CLASSES.items() for name in names.split()]


def _names_not_run() -> dict[str, str]:
    return {f"{package}.{name}": why for package, (names, why) in _NOT_RUN.items() for name in names.split()}


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Tests]]]:
    """Runs the selected classes in the order of their tests, several at a time, because they wait most of the time."""
    selected = [item for item in request.session.items if getattr(item, "originalname", "") == test_class.__name__]
    names = [item.callspec.params["suite_class"] for item in selected if isinstance(item, pytest.Function)]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            yield {name: threads.submit(_run, name, tmp_path_factory.mktemp(name)) for name in names}
        finally:
            threads.shutdown(cancel_futures=True)


@pytest.mark.timeout(_CLASS_TIMEOUT_S + 300)
@pytest.mark.parametrize("suite_class", _names())
def test_class(suite_class: str, runs: dict[str, Future[Tests]], record_property: Callable[[str, Any], None]) -> None:
    tests = runs[suite_class].result()
    states = Counter(test["state"] for test in tests)
    reasons = Counter(test["reason"] for test in tests if test["state"] == "not run")
    record_property("parts", {"passed": states["passed"], "failed": states["failed"], "not_run": dict(reasons)})
    failures = [f"{test['name']}: {test['reason']}" for test in tests if test["state"] == "failed"]
    assert not failures, "\n".join(failures)
    if not states["passed"]:
        pytest.skip("; ".join(reasons))


def _run(suite_class: str, directory: Path) -> Tests:
    """Runs a class with a cluster of its own, because some classes change the configuration."""
    with ExitStack() as servers:
        namesrv = gantry_namesrv(directory / "namesrv")
        servers.callback(namesrv.kill)
        for number in range(1, _BROKERS + 1):
            name = f"TestBrokerName_{number}"
            broker = gantry_broker(directory / name, namesrv.address, brokerName=name, **_BROKER_CONFIG)
            servers.callback(broker.kill)
        properties = {"gantry.namesrv.port": namesrv.port, "java.io.tmpdir": directory / "tmp"}
        if suite_class in _WITH_PROXY:
            proxy = gantry_proxy(directory / "proxy", namesrv.address)
            servers.callback(proxy.kill)
            properties["gantry.proxy.port"] = proxy.port
        return _run_jvm(suite_class, properties, directory)


def _run_jvm(suite_class: str, properties: Mapping[str, object], directory: Path) -> Tests:
    """Returns the JUnit tests of a class with their states."""
    (directory / "tmp").mkdir()
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", *(f"-D{key}={value}" for key, value in properties.items())]
    command = java_command(
        *("org.gantrymq.interop.suite.RunClass", f"{_PACKAGE}.{suite_class}"),
        home=directory,
        options=[*options, *JAVA_OPENS],
        version=_SUITE,
    )
    results, log = directory / "results.jsonl", directory / "junit.log"
    with results.open("wb") as output, log.open("wb") as errors:
        done = subprocess.run(command, cwd=directory, stdout=output, stderr=errors, timeout=_CLASS_TIMEOUT_S)
    try:
        return tests_of(results.read_text(errors="replace"), done.returncode)
    except ValueError as e:
        pytest.fail(f"{e}:\n{log.read_text(errors='replace')[-4000:]}")


@pytest.mark.parametrize("suite_class", _names_not_run())
def test_class_without_outside_servers(suite_class: str) -> None:
    pytest.skip(_names_not_run()[suite_class])


def test_all_classes_of_the_jar_are_listed() -> None:
    (jar,) = (BUILDS[_SUITE] / "target" / "dependency").glob("rocketmq-test-*-tests.jar")
    directory = _PACKAGE.replace(".", "/") + "/"
    found = {
        entry.removeprefix(directory).removesuffix(".class").replace("/", ".")
        for entry in zipfile.ZipFile(jar).namelist()
        if entry.startswith(directory) and entry.endswith(("IT.class", "Test.class")) and "BaseIT" not in entry
    }
    assert found == ({*_names()} - _WITH_PROXY) | {*_names_not_run()}
