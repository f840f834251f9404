"""Checks the orders of a day with pandera: valid orders go to a Parquet file, the others to a topic with the reason.

    python orders_quality.py 2026-01-31 s3://lake/orders --name-servers mq1:9876

The directory can be any path of fsspec. A second run for the same day replaces the file, and GantryMQ's brokers drop
the invalid orders that they have already stored. The topic of invalid orders must exist:

    gantry admin updateTopic -c DefaultCluster -t orders-invalid
"""

import argparse
import json
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pandas as pd
import pandera.pandas as pa
import pyarrow

from gantrymq.arrow import read_topic, write_topic


class Order(pa.DataFrameModel):
    """A valid order. A column of another type is converted if possible."""

    id: str = pa.Field(str_matches=r"order-\d+")
    item: str = pa.Field(isin=["tea", "coffee", "chocolate"])
    quantity: int = pa.Field(in_range={"min_value": 1, "max_value": 100})

    class Config:
        coerce = True


def parsed(body: bytes) -> dict[str, Any]:
    """Returns the fields of an order; without a value if the body is no JSON object or lacks the field."""
    try:
        fields = json.loads(body)
    except ValueError:
        fields = None
    fields = fields if isinstance(fields, dict) else {}
    return {name: fields.get(name) for name in ("id", "item", "quantity")}


def check(orders: pd.DataFrame) -> tuple[pd.DataFrame, dict[int, str]]:
    """Returns the valid orders, and {index of an invalid order: reasons}."""
    reasons: dict[int, str] = {}
    while True:
        try:
            return Order.validate(orders, lazy=True), reasons
        except pa.errors.SchemaErrors as e:
            failures = e.failure_cases.dropna(subset=["index"])
            if failures.empty:
                raise
        # Pandera checks the values of a column only after every value has the type of the column.
        failed = {
            int(index): "; ".join(sorted(set(rows.column + ": " + rows.check)))
            for index, rows in failures.groupby("index")
        }
        reasons |= failed
        orders = orders.drop(index=list(failed))


def run(name_servers: str, day: date, directory: str) -> tuple[int, int]:
    """Checks the orders that brokers stored on this day (UTC). Returns the numbers of valid and invalid orders."""
    start = datetime.combine(day, time(), UTC)
    messages = read_topic(name_servers, "orders", start=start, end=start + timedelta(days=1), columns=["body"])
    bodies = messages.read_all().column("body").to_pylist()
    valid, reasons = check(pd.DataFrame([parsed(body) for body in bodies], columns=["id", "item", "quantity"]))
    if reasons:
        properties = [[("reason", reason)] for reason in reasons.values()]
        invalid = pyarrow.table(
            {
                "body": [bodies[index] for index in reasons],
                "properties": pyarrow.array(properties, pyarrow.map_(pyarrow.string(), pyarrow.string())),
            }
        )
        # With this name, a repeated run stores nothing twice.
        write_topic(name_servers, "orders-invalid", invalid, exactly_once=(f"quality-{day}", 1))
    valid.to_parquet(f"{directory}/orders-{day}.parquet", index=False)
    return len(valid), len(reasons)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("day", type=date.fromisoformat)
    parser.add_argument("directory")
    parser.add_argument("--name-servers", default="127.0.0.1:9876")
    given = parser.parse_args()
    print("valid: {}, invalid: {}".format(*run(given.name_servers, given.day, given.directory)))
