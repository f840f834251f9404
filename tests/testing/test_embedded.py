"""Tests of EmbeddedCluster and the pytest fixture."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest
from wait_until import wait_until

from gantrymq.broker.broker import Broker
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ConfigError, GantryError, ThreadDied
from gantrymq.protocol.message import Message
from gantrymq.testing.embedded import EmbeddedCluster

pytest_plugins = ["pytester"]

#: A second pytest in this process would take over faulthandler, and a later crash would leave no trace.
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:faulthandler", "-o", "asyncio_default_fixture_loop_scope=function")


def accepts(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_messages_reach_all_brokers() -> None:
    with EmbeddedCluster(brokers=2, default_topic_queue_nums=2) as cluster:
        assert len(cluster.brokers) == 2
        async with Producer(cluster.name_server, "test") as producer:
            results = [await producer.send(Message("embedded", b"%d" % i)) for i in range(8)]
    assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b"}


@pytest.mark.alone
def test_it_starts_in_a_moment_and_leaves_nothing() -> None:
    # The first start includes imports, which are not measured.
    with EmbeddedCluster():
        pass
    began = time.perf_counter()
    with EmbeddedCluster() as cluster:
        took = time.perf_counter() - began
        directory = Path(str(cluster.directory))
        assert directory.is_dir()
        assert all(accepts(address) for address in (cluster.name_server, *cluster.brokers))
    assert not directory.exists()
    assert not any(accepts(address) for address in (cluster.name_server, *cluster.brokers))
    # Ten times the duration on an idle machine.
    assert took < 1.0


async def test_a_directory_is_kept_and_used_again(tmp_path: Path) -> None:
    for expected_offset in (0, 1):
        with EmbeddedCluster(directory=tmp_path, default_topic_queue_nums=1) as cluster:
            async with Producer(cluster.name_server, "test") as producer:
                assert (await producer.send(Message("kept", b"x"))).queue_offset == expected_offset
    assert (tmp_path / "broker-a" / "commitlog").is_dir()


def test_a_failed_start_is_raised_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "broker-a").write_text("a file where the broker wants a directory")
    cluster = EmbeddedCluster(directory=tmp_path)
    with pytest.raises((GantryError, OSError)):
        cluster.start()
    assert not accepts(cluster.name_server)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="auto_create_topics"):
        EmbeddedCluster(auto_create_topics=False)


def test_it_starts_once() -> None:
    with EmbeddedCluster() as cluster, pytest.raises(GantryError, match="already"):
        cluster.start()


async def die() -> None:
    raise SystemExit("the end")


def test_a_thread_that_dies_is_told_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    cluster = EmbeddedCluster()
    cluster.start()
    addresses = (cluster.name_server, *cluster.brokers)
    directory = Path(str(cluster.directory))
    loop = cluster._loop
    assert loop is not None
    asyncio.run_coroutine_threadsafe(die(), loop)
    wait_until(lambda: not any(accepts(address) for address in addresses))
    with pytest.raises(ThreadDied, match="SystemExit: the end") as died:
        cluster.stop()
    assert isinstance(died.value.__cause__, SystemExit)
    assert not directory.exists()
    assert "the thread gantry-cluster died" in caplog.text
    # The error is raised only once.
    cluster.stop()
    with cluster:
        pass


def test_a_server_that_raises_when_it_stops_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real_stop = Broker.stop

    async def stop_and_raise(broker: Broker) -> None:
        await real_stop(broker)
        raise OSError("no space left")

    monkeypatch.setattr(Broker, "stop", stop_and_raise)
    with pytest.raises(ThreadDied, match="OSError: no space left"), EmbeddedCluster():
        pass


def test_a_test_whose_cluster_dies_does_not_pass(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio

        async def die():
            raise SystemExit("the end")

        def test_it(gantry_cluster):
            asyncio.run_coroutine_threadsafe(die(), gantry_cluster._loop)
        """
    )
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*SystemExit: the end*", "*ThreadDied: the thread of the cluster died*"])


def test_the_fixture_gives_a_running_cluster(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from gantrymq.client.producing.producer import Producer
        from gantrymq.protocol.message import Message

        async def send(cluster):
            async with Producer(cluster.name_server, "test") as producer:
                return await producer.send(Message("t", b"x"))

        def test_it(gantry_cluster):
            import asyncio
            assert asyncio.run(send(gantry_cluster)).queue_offset == 0
        """
    )
    # The package's entry point loads the plugin of the fixture; conftest.py is empty.
    pytester.makeconftest("")
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=1)


def test_pytest_does_not_rewrite_the_package(pytester: pytest.Pytester) -> None:
    # pytest marks all modules of an installed wheel. Some versions do not mark those of an editable installation.
    pytester.makepyfile(marked="import pytest\npytest.register_assert_rewrite('gantrymq')")
    pytester.makeconftest("import gantrymq.client.producing.producer")
    pytester.makepyfile(
        """
        import sys

        def test_it(gantry_cluster):
            modules = {name for name in sys.modules if name.startswith("gantrymq.")}
            assert {"gantrymq.broker.broker", "gantrymq.client.producing.producer"} <= modules
            rewritten = {name for name in modules if "Rewriting" in type(sys.modules[name].__loader__).__name__}
            assert rewritten <= {"gantrymq.testing", "gantrymq.testing.plugin"}
        """
    )
    pytester.syspathinsert()
    result = pytester.runpytest_subprocess(*OPTIONS, "-p", "marked")
    result.assert_outcomes(passed=1)
