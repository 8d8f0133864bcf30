"""What alembic runs: the steps, on the connection and in the transaction that ``sql_database.upgrade`` has open."""

from __future__ import annotations


def run() -> None:
    """Take the steps."""
    from alembic import context

    context.configure(
        connection=context.config.attributes["connection"],
        version_table="callgate_schema",
        render_as_batch=True,  # SQLite changes a table by copying it
    )
    context.run_migrations()


run()
