"""Options for the JVMs of Spark that tests start, directly or in programs."""

from __future__ import annotations

#: Queries of tests take a second or two. The optimising compiler and parallel garbage collection cost more processor
#: time than they save: without them, a test file takes 43 instead of 58 s of it.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
#: Environment variables. `bin/spark-submit` passes the first to Spark and the second to the JVM that builds its command
#: line. The third one is for masters and workers of a standalone cluster.
VARIABLES = {"SPARK_SUBMIT_OPTS": OPTIONS, "SPARK_LAUNCHER_OPTS": OPTIONS, "SPARK_DAEMON_JAVA_OPTS": OPTIONS}
