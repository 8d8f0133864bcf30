"""The second identity of an effect: a caller's key beside the key that its tool declares.

The row of an alias repeats the row of its effect, so the version of Callgate before this one, which does not read the new
column, answers the caller's key from it.
"""

from __future__ import annotations

from callgate.providers.stores.sql.database.migrations.versions.v0001_first import text_column

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_SOME = "alias_of IS NOT NULL"


def upgrade() -> None:
    """Add the column, and an index of the few rows that have it."""
    import sqlalchemy as sa
    from alembic import op

    column = text_column("alias_of")
    column.nullable = True
    op.add_column("callgate_effects", column)
    op.create_index(
        "callgate_effects_alias",
        "callgate_effects",
        ["tenant", "alias_of"],
        postgresql_where=sa.text(_SOME),
        sqlite_where=sa.text(_SOME),
    )


def downgrade() -> None:
    """Refuse: a caller's key would run an effect again."""
    raise NotImplementedError
