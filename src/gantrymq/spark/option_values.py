"""`QueryValues` parses the options that Spark passes to a data source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gantrymq.arrow.option_values import Values
from gantrymq.errors import ConfigError

#: Spark adds these to the options of a query.
_SPARKS_OWN = ("checkpointlocation", "queryname")
#: Spark passes this property of a table to the source only if CREATE TABLE names no columns.
_TABLE_PROPERTY = "provider"
_TABLE_REMEDY = (
    "Spark drops the OPTIONS of tables: use CREATE TEMPORARY VIEW ... USING ... OPTIONS (...), or create the table "
    "with its columns and set the options in each query, with WITH (...) after its name"
)


class QueryValues(Values):
    """The options of a query, without those that Spark adds."""

    def __init__(
        self, options: Mapping[str, str], known: Iterable[str], action: str, elsewhere: Iterable[str] = ()
    ) -> None:
        """Checks the names of the options, as `Values` does.

        Raises ConfigError for an unknown option, and if the query creates a table without columns.
        """
        if any(given.lower() == _TABLE_PROPERTY for given in options):
            raise ConfigError(f"a table can't be created without columns. {_TABLE_REMEDY}")
        own = {name: value for name, value in options.items() if name.lower() not in _SPARKS_OWN}
        super().__init__(own, known, action, elsewhere)

    def _hint(self) -> str:
        """Returns the remedy for a query of a table. Only such a query has no options at all."""
        return "" if self._values else f". {_TABLE_REMEDY}"
