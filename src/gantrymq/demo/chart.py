"""Draws a chart of the mean departure delay by the hour of the day."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

#: The number of carriers, largest first, that have their own line in the chart.
LINES = 4


def draw_delay_by_hour(figures: pd.DataFrame, airlines: dict[str, str], path: Path) -> None:
    """Writes the chart as PNG to `path`. `figures` has FIGURES by (carrier, hour)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = figures.reset_index()
    table["hour"] = table["hour"].dt.tz_convert("America/New_York").dt.hour
    of_all = table.groupby("hour")[["departed", "departure_delay"]].sum()
    # At night, there are too few departures for a meaningful mean.
    of_all = of_all[of_all["departed"] >= 100]
    largest = table.groupby("carrier")["flights"].sum().nlargest(LINES).index

    figure = Figure(figsize=(10, 5.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.bar(of_all.index, of_all["departure_delay"] / of_all["departed"], color="#cfd8dc", label="all airlines")
    for carrier in largest:
        own = table[table["carrier"] == carrier].groupby("hour")[["departed", "departure_delay"]].sum()
        own = own[own["departed"] >= 100]
        axes.plot(
            own.index, own["departure_delay"] / own["departed"], marker="o", markersize=3, label=airlines[carrier]
        )
    axes.set_xlabel("scheduled hour of departure, New York")
    axes.set_ylabel("mean departure delay, minutes")
    axes.set_title(f"{int(figures['flights'].sum()):,} flights from New York, 2013")
    axes.set_xticks(list(of_all.index))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path)
