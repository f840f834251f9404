"""`DemoState`: the directory of the demo, and the progress of an interrupted run."""

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
#: The longest wait for the lock, in seconds. The servers of a killed run have the lock until they exit.
LOCK_TIMEOUT_S = 5.0


class Progress(msgspec.Struct):
    """The progress that is stored between two runs."""

    #: The number of flights of the run.
    total: int
    #: The number of flights, from the first one, that brokers have acknowledged. The topic can contain later flights.
    sent: int = 0
    #: If true, the last run was complete, and the next one starts anew.
    is_finished: bool = False


class DemoState:
    """The locked directory of the demo. `was_resumed` is true if this run continues an interrupted one."""

    def __init__(self, directory: Path, *, total: int, fresh: bool) -> None:
        """Locks the directory, and loads its progress. If `fresh` is true, an earlier run is discarded.

        Raises GantryError if another demo uses the directory, or if it contains other files.
        """
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
        """The directory for the files of the servers."""
        return self.directory / "cluster"

    @property
    def checkpoint(self) -> Path:
        """The directory for Spark's checkpoint."""
        return self.directory / "checkpoint"

    @property
    def spark(self) -> Path:
        """The directory for Spark's temporary files."""
        return self.directory / "spark"

    @property
    def spark_log(self) -> Path:
        """The file for the output of Spark and its workers, of all runs."""
        return self.directory / "spark.log"

    @property
    def parquet(self) -> Path:
        """The directory for the Parquet result, partitioned by batch and month."""
        return self.directory / "delays"

    @property
    def chart(self) -> Path:
        """The file for the chart."""
        return self.directory / "delay-by-hour.png"

    @property
    def lock_fd(self) -> int:
        """The file descriptor of the lock. The lock lasts until every process with this descriptor has closed it."""
        return self._lock.fileno()

    def save(self) -> None:
        """Writes `progress` atomically: after a crash, the file contains either the old or the new progress."""
        temporary = self._file.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(self.progress))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._file)

    def close(self) -> None:
        """Releases the lock."""
        self._lock.close()

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in self.directory.iterdir()}
        # `_clear` deletes files, so it must never run in a directory of another program.
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
    """Returns the directory gantrymq/demo in the user's cache (XDG_CACHE_HOME, or ~/.cache)."""
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
