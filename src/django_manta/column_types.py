"""
A constraint: every column of a table holds what its field can be read as.

SQLite keeps any value in any column. PostgreSQL has moments that no datetime can hold ("infinity", 4713 BC). A row with
such a value can be claimed, listed and recovered by a statement, and then not be read by Python. And behind the last
number that a column can hold there is none for the next row. The database refuses such values instead.
"""

from collections.abc import Iterator
from typing import Any

from django.db import models

#: The moments that can be shown in every time zone west of UTC, and read in UTC: from the second day of Python's
#: calendar to its last one. A text on SQLite, where moments are compared as texts.
FIRST_MOMENT, LAST_MOMENT = "0001-01-02 00:00:00", "9999-12-31 23:59:59.999999"

_RANGES = {
    "SmallIntegerField": (-(2**15), 2**15 - 1),
    "IntegerField": (-(2**31), 2**31 - 1),
    "PositiveIntegerField": (0, 2**31 - 1),
    # Not up to the last one: both databases go on from the highest number that is there.
    "BigIntegerField": (0, 2**62),
    "BigAutoField": (0, 2**62),
}


class ColumnTypes(models.BaseConstraint):
    """Of all columns that the model has when the constraint is made: a migration that adds a moment makes it anew."""

    def constraint_sql(self, model: Any, schema_editor: Any) -> Any:
        condition = condition_of(model, schema_editor.connection.vendor)
        return schema_editor._check_sql(self.name, condition) if condition else None

    def create_sql(self, model: Any, schema_editor: Any) -> Any:
        condition = condition_of(model, schema_editor.connection.vendor)
        if not condition:
            return None
        statement = schema_editor._create_check_sql(model, self.name, condition)
        if schema_editor.connection.vendor == "postgresql":
            # Rows that are there are not looked at: that would lock a large table for long, and one bad row among them
            # would stop the migration. `fsck` names it.
            statement.template += " NOT VALID"
        return statement

    def remove_sql(self, model: Any, schema_editor: Any) -> Any:
        condition = condition_of(model, schema_editor.connection.vendor)
        return schema_editor._delete_check_sql(model, self.name) if condition else None

    def validate(self, model: Any, instance: Any, exclude: Any = None, using: Any = None) -> None:
        """The fields of a model validate their values themselves."""

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, ColumnTypes) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)


def condition_of(model: Any, vendor: str) -> str:
    """The SQL condition; empty if the database's own types say it all."""
    fields = [(f'"{field.column}"', _kind(field)) for field in model._meta.concrete_fields]
    conditions = _on_postgres(fields) if vendor == "postgresql" else (_on_sqlite(*field) for field in fields)
    return " AND ".join(filter(None, conditions))


def _kind(field: Any) -> str:
    """By the name of a field's class, also of the one that a foreign key refers to."""
    return str(getattr(field, "target_field", field).get_internal_type())


def _on_postgres(fields: list[tuple[str, str]]) -> Iterator[str]:
    moments = ", ".join(column for column, kind in fields if kind == "DateTimeField")
    if moments:
        # One expression for all of them, because it is evaluated whenever a row is written. They pass over NULL.
        yield f"GREATEST({moments}) <= '{LAST_MOMENT}+00'"
        yield f"LEAST({moments}) >= '{FIRST_MOMENT}+00'"
    for column, kind in fields:
        if kind == "FloatField":
            yield f"{column} >= 0 AND {column} < 'infinity'"
        elif kind in ("BigIntegerField", "BigAutoField"):
            yield f"{column} BETWEEN {_RANGES[kind][0]} AND {_RANGES[kind][1]}"


def _on_sqlite(column: str, kind: str) -> str:
    match kind:
        case "DateTimeField":
            return f"({column} IS NULL OR (typeof({column}) = 'text' AND {_is_moment(column)}))"
        case "UUIDField":
            return (
                f"({column} IS NULL OR (typeof({column}) = 'text' AND length({column}) = 32"
                f" AND {column} NOT GLOB '*[^0-9a-f]*'))"
            )
        case "TextField":
            return f"(typeof({column}) IN ('text', 'null') AND COALESCE(instr({column}, char(0)), 0) = 0)"
        case "BooleanField":
            return f"({column} IS NULL OR (typeof({column}) = 'integer' AND {column} IN (0, 1)))"
        case "FloatField":
            is_number = f"typeof({column}) IN ('real', 'integer')"
            return f"({column} IS NULL OR ({is_number} AND {column} >= 0 AND {column} < 9e999))"
        case _ if kind in _RANGES:
            first, last = _RANGES[kind]
            return f"({column} IS NULL OR (typeof({column}) = 'integer' AND {column} BETWEEN {first} AND {last}))"
    # What is left is JSON, which Django has checked.
    return ""


def _is_moment(column: str) -> str:
    day, time, fraction = f"substr({column}, 1, 10)", f"substr({column}, 11)", f"substr({column}, 20)"
    minutes = "[0-5][0-9]:[0-5][0-9]*"
    return " AND ".join(
        [
            # Moved by nothing, a day that its month does not have becomes another one. Without the time, of which
            # SQLite keeps milliseconds only: the last one of a day would be rounded up into the next.
            f"date({day}, '+0 days') IS {day}",
            f"{column} >= '{FIRST_MOMENT[:10]}'",
            f"({time} GLOB ' [01][0-9]:{minutes}' OR {time} GLOB ' 2[0-3]:{minutes}')",
            f"{fraction} NOT GLOB '*[^0-9.]*'",
        ]
    )
