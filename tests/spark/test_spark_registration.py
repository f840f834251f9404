"""`register` with a session that has data sources of these names already, as in Spark 4.0."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from gantrymq.spark.datasource import register


class Rejection(AnalysisException):
    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self._condition = condition

    def getCondition(self) -> str:
        return self._condition


def session(condition: str) -> tuple[Any, list[str]]:
    """Returns a session that rejects each source with this condition, and the names of these sources."""
    names: list[str] = []

    def reject(source: Any) -> None:
        names.append(source.name())
        raise Rejection(condition)

    conf = SimpleNamespace(get=lambda key, default: default)
    return SimpleNamespace(conf=conf, dataSource=SimpleNamespace(register=reject)), names


def test_spark_keeps_the_sources_that_it_has_found() -> None:
    spark, names = session("DATA_SOURCE_ALREADY_EXISTS")
    register(spark)
    assert names == ["rocketmq", "rocketmq-store"]


@pytest.mark.parametrize("module", ["pyspark_rocketmq", "pyspark_rocketmq_store"])
def test_a_source_of_another_package_is_an_error(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    spark, _ = session("DATA_SOURCE_ALREADY_EXISTS")
    with pytest.raises(AnalysisException, match="DATA_SOURCE_ALREADY_EXISTS"):
        register(spark)


def test_other_errors_are_raised() -> None:
    spark, _ = session("DATA_SOURCE_NOT_FOUND")
    with pytest.raises(AnalysisException, match="DATA_SOURCE_NOT_FOUND"):
        register(spark)
