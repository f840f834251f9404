"""Runs the demo from start to end: loads the source, runs the stream, compares and shows the results."""

from __future__ import annotations

import time
from pathlib import Path

from gantrymq.demo.chart import draw_delay_by_hour
from gantrymq.demo.check import compare, read_parquet
from gantrymq.demo.display import Display
from gantrymq.demo.flights import expected_figures, load_airlines, load_flights
from gantrymq.demo.state import DemoState, default_directory
from gantrymq.demo.stream import FlightStream
from gantrymq.testing.signals import interruptible


def run_demo(directory: Path | None, *, fresh: bool, limit: int | None = None) -> int:
    """Runs the demo. An interrupted or failed run is resumed by the next one.

    Args:
        directory: The directory for state and results. Default: one in the user's cache.
        fresh: If true, discards the state of an earlier run.
        limit: The number of flights, from the start of the year. Default: all.

    Returns:
        0 if every figure is correct, otherwise 1.

    Raises:
        GantryError: The demo failed.
        Interrupted: The process received SIGINT or SIGTERM.
    """
    started = time.monotonic()
    with interruptible():
        flights = load_flights()[:limit]
        expected = expected_figures(flights)
        airlines = load_airlines()
        state = DemoState(directory or default_directory(), total=len(flights), fresh=fresh)
        try:
            display = Display()
            display.note(f"{'going on' if state.was_resumed else 'starting'} in {state.directory}")
            stream = FlightStream(state, flights, airlines, len(expected), display)
            with display:
                stream.run()

            figures = read_parquet(state.parquet)
            comparisons = [
                compare("Parquet", expected, figures),
                compare("the topic", expected, stream.collected.figures()),
            ]
            names = dict(zip(airlines["carrier"], airlines["name"], strict=True))
            draw_delay_by_hour(figures, names, state.chart)
            display.results(figures, names, comparisons)
            all_equal = all(comparison.is_equal for comparison in comparisons) and not stream.collected.contradictions
            state.progress.is_finished = all_equal
            state.save()
            display.note(f"Parquet: {state.parquet}\nchart: {state.chart}")
            display.note(
                f"{'every figure agrees' if all_equal else 'NOT every figure agrees'} after "
                f"{time.monotonic() - started:.0f} s; flights in: {stream.sent}, through Spark: {stream.read}, besides "
                "the message that ends the year"
            )
            return 0 if all_equal else 1
        finally:
            state.close()
