"""A signal that comes at any moment leaves a cluster that can be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from threading import Timer

import pytest

from gantrymq.cli import up
from gantrymq.testing.processes import ProcessCluster
from gantrymq.testing.signals import Interrupted, interruptible


def test_no_process_is_polled_where_a_signal_may_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of signals that came while `Popen.poll` ran 15 of 100 left its lock held: `wait` never returned after that."""
    polled: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(up, "WATCH_INTERVAL_S", 0.01)
    told = Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
    with ProcessCluster(tmp_path, brokers=0) as cluster:

        def watch() -> None:
            with interruptible():
                told.start()
                up._watch(cluster, None)

        with monkeypatch.context() as patch:
            patch.setattr(subprocess.Popen, "poll", lambda process: polled.append(process))
            with pytest.raises(Interrupted):
                watch()
    assert not polled


def test_further_signals_change_nothing() -> None:
    # Spark's, where it was started by this process before.
    before = signal.getsignal(signal.SIGINT)
    with interruptible():
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before
