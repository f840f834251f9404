"""DemoState: the demo's directory, and how far an interrupted run came."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import IO

import msgspec

from gantrymq.errors import GantryError

PROGRESS_FILE = "gantry-demo.json"
#: The servers of a run that was killed need a moment to end.
LOCK_TIMEOUT_S = 5.0


class Progress(msgspec.Struct):
    """What is on disk between two runs."""

    #: How many flights this directory's run is about.
    total: int
    #: The first `sent` flights are in the topic, acknowledged. Some after them may be, too.
    sent: int = 0
    #: The last run came to its end: the next starts over.
    is_finished: bool = False


class DemoState:
    """A locked directory. `progress` is what it says; `was_resumed` whether there was something to go on with."""

    def __init__(self, directory: Path, *, total: int, fresh: bool) -> None:
        """Raises GantryError when another demo uses the directory, or something else's files are in it."""
        self.directory = directory.absolute()
        self._file = self.directory / PROGRESS_FILE
        self._prepare()
        self._lock = _lock(self.directory)
        progress = self._load()
        self.was_resumed = progress is not None and not fresh and not progress.is_finished and progress.total == total
        if progress is not None and self.was_resumed:
            self.progress = progress
        else:
            self._clear()
            self.progress = Progress(total)
            self.save()

    @property
    def cluster(self) -> Path:
        """The servers' files."""
        return self.directory / "cluster"

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint."""
        return self.directory / "checkpoint"

    @property
    def spark(self) -> Path:
        """Spark's scratch files."""
        return self.directory / "spark"

    @property
    def spark_log(self) -> Path:
        """What Spark and its workers print, of all runs."""
        return self.directory / "spark.log"

    @property
    def parquet(self) -> Path:
        """The result as Parquet, partitioned by batch and month."""
        return self.directory / "delays"

    @property
    def chart(self) -> Path:
        """The picture."""
        return self.directory / "delay-by-hour.png"

    @property
    def lock_fd(self) -> int:
        """The lock lasts until every process that has this file descriptor closes it."""
        return self._lock.fileno()

    def save(self) -> None:
        """Writes `progress`; a crash leaves the old or the new one."""
        temporary = self._file.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(self.progress))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._file)

    def close(self) -> None:
        """Lets another demo have the directory."""
        self._lock.close()

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in self.directory.iterdir()}
        # It is emptied at times: only ever one of our own.
        if names - {f"{PROGRESS_FILE}.lock"} and PROGRESS_FILE not in names:
            raise GantryError(f"{self.directory} holds other files than the demo's: name a new or empty directory")

    def _load(self) -> Progress | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Progress)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _clear(self) -> None:
        for path in (self.cluster, self.checkpoint, self.spark, self.parquet):
            shutil.rmtree(path, ignore_errors=True)
        for path in (self.chart, self.spark_log):
            path.unlink(missing_ok=True)


def default_directory() -> Path:
    """gantrymq/demo under the user's cache (XDG_CACHE_HOME, else ~/.cache)."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "gantrymq" / "demo"


def _lock(directory: Path) -> IO[bytes]:
    file = (directory / f"{PROGRESS_FILE}.lock").open("wb")
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if time.monotonic() > deadline:
                file.close()
                raise GantryError(f"another demo is running in {directory}") from e
            time.sleep(0.05)
        else:
            return file
