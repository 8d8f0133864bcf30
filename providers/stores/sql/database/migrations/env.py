"""The environment of alembic: migrations run in the open transaction of ``schema.upgrade_schema``."""

from __future__ import annotations


def migrate() -> None:
    """Run the migrations."""
    from alembic import context

    context.configure(
        connection=context.config.attributes["connection"],
        version_table="callgate_schema",
        render_as_batch=True,  # SQLite changes a table by copying it
    )
    context.run_migrations()


migrate()
