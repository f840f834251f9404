"""Compares the results with the expected figures, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gantrymq.demo.flights import FIGURES

if TYPE_CHECKING:
    import pandas as pd


class Comparison(NamedTuple):
    """The outcome of a comparison with the source.

    Attributes:
        result: The name of the result.
        figures: The number of compared figures.
        wrong: The number of figures that differ.
        example: A figure that differs; empty if there is none.
    """

    result: str
    figures: int
    wrong: int
    example: str

    @property
    def is_equal(self) -> bool:
        return self.wrong == 0


def compare(result: str, expected: pd.DataFrame, actual: pd.DataFrame) -> Comparison:
    """Compares all figures of every carrier and hour. A figure that only one side has counts as wrong."""
    both = expected.join(actual, how="outer", lsuffix="_expected", rsuffix="_actual")
    wrong, example = 0, ""
    for name in FIGURES:
        left, right = both[f"{name}_expected"], both[f"{name}_actual"]
        differs = left.ne(right)
        if differs.any():
            wrong += int(differs.sum())
            key = differs.idxmax()
            example = f"{name} of {key[0]} at {key[1]}: {left[key]} in the source, {right[key]} in the result"
    return Comparison(result, len(both) * len(FIGURES), wrong, example)


def read_parquet(directory: Path) -> pd.DataFrame:
    """Reads the columns FIGURES, indexed by (carrier, hour), from Spark's Parquet files."""
    import pandas as pd

    table = pd.read_parquet(directory, columns=["carrier", "hour", *FIGURES])
    table["hour"] = pd.to_datetime(table["hour"], utc=True)
    return table.set_index(["carrier", "hour"]).sort_index()
