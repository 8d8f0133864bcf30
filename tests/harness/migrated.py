"""The migration of an empty database, recorded once a process and replayed, since alembic takes ten times as long.

Alembic migrates what has tables, the first empty database of each dialect, and whatever another process opens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from callgate.providers.stores.sql.database import database as sql_database
from callgate.providers.stores.sql.database.schema import upgrade_schema

_RECORDED: dict[str, list[str]] = {}
"""The statements that make the newest schema, by dialect; ``{schema}`` is the schema of PostgreSQL."""
MADE: list[Any] = []
"""The objects in a schema of PostgreSQL after the migration, and the revision."""
_OBJECTS = """
  SELECT relname, relkind, relnatts, (SELECT count(*) FROM pg_trigger WHERE tgrelid = pg_class.oid)
    FROM pg_class WHERE relnamespace = current_schema()::regnamespace
  UNION SELECT proname, 'f', 0, 0 FROM pg_proc WHERE pronamespace = current_schema()::regnamespace ORDER BY 1, 2"""
_TABLES = {
    "sqlite": "SELECT count(*) FROM sqlite_master",
    "postgresql": "SELECT CASE WHEN current_schema() IS NULL THEN 1 ELSE count(*) END FROM pg_class"
    " WHERE relnamespace = current_schema()::regnamespace",
}
_READS = ("SELECT", "PRAGMA")


def upgrade(connection: Any) -> None:
    """Migrate as ``upgrade_schema`` does, with its statements."""
    dialect = connection.dialect.name
    if connection.exec_driver_sql(_TABLES[dialect]).scalar():
        upgrade_schema(connection)
    elif dialect not in _RECORDED:
        _RECORDED[dialect] = _recorded(connection)
    elif dialect == "sqlite":
        for statement in _RECORDED[dialect]:
            connection.exec_driver_sql(statement)
    else:  # one round trip
        name = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar()
        connection.exec_driver_sql(";".join(_RECORDED[dialect]).replace("{schema}", name))


def made_in(execute: Callable[[str], Any]) -> list[Any]:
    """Return the objects in the schema that *execute* works on, and the revision; nothing where there is no revision."""
    found = [tuple(row) for row in execute(_OBJECTS)]
    has = any(row[0] == "callgate_schema" for row in found)
    return [*found, *(tuple(row) for row in execute("SELECT * FROM callgate_schema"))] if has else []


def _recorded(connection: Any) -> list[str]:
    from sqlalchemy import event

    seen: list[str] = []
    note = lambda _, __, statement, *___: seen.append(statement)
    event.listen(connection, "before_cursor_execute", note)
    try:
        upgrade_schema(connection)
    finally:
        event.remove(connection, "before_cursor_execute", note)
    if connection.dialect.name == "sqlite":
        made = connection.exec_driver_sql(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
        ).scalars()
        row = connection.exec_driver_sql("SELECT * FROM callgate_schema").one()
        return [*made, f"INSERT INTO callgate_schema VALUES {tuple(row)!r}"]
    MADE[:] = made_in(connection.exec_driver_sql)
    name = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar()
    return [statement.replace(name, "{schema}") for statement in seen if not statement.startswith(_READS)]


def install() -> None:
    """Let the stores of this process migrate so."""
    setattr(sql_database, "upgrade_schema", upgrade)  # noqa: B010  (the module does not export it)
