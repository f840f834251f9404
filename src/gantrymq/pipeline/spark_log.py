"""The log of Spark's JVM, in a file of the project, and errors of Spark without Java's stack traces."""

from __future__ import annotations

import re
from pathlib import Path

#: A stack frame of Java, and the lines around the frames.
_JAVA_FRAME = re.compile(r"\s+at \S+\(.*\)|\s*\.\.\. \d+ more|(?:Driver|JVM) stacktrace:")
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.append = false
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c{{1}}: %m%n%ex
"""


class SparkLog:
    """The log file of a project's run, which each run replaces."""

    def __init__(self, directory: Path) -> None:
        """Writes the logging configuration of Spark's JVM to `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "spark.log"
        configuration = directory / "log4j2.properties"
        configuration.write_text(_LOG4J.format(log=self.path))
        #: The option of the JVM. Without it, Spark's log and its stack traces go to standard error.
        self.java_option = f"-Dlog4j2.configurationFile=file://{configuration}"


def without_java_frames(text: str) -> str:
    """Returns an error text of Spark without the lines of Java's stack traces."""
    return "\n".join(line for line in text.splitlines() if not _JAVA_FRAME.fullmatch(line)).strip()
