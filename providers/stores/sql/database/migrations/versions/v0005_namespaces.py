"""The namespace of effects, suspended calls and jobs: several applications share a database.

The version of Callgate before this one works on these tables, in the namespace ``""``: the column has a default, and no
key has changed. A version whose revision is at least ``callgate_schema.serves`` may open a newer schema. Its statements on many rows read more rows than before, since the indexes begin with the namespace.
"""

from __future__ import annotations

from callgate.providers.stores.sql.database.migrations.versions.v0001_first import text_column

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_FREE, _OVER = "free_at IS NOT NULL", "ended_at IS NOT NULL"
_INDEXES: dict[str, tuple[str, list[str], str | None]] = {
    "callgate_effects_end": ("callgate_effects", ["state", "ended_at", "tenant"], None),
    "callgate_waits_due": ("callgate_waits", ["state", "expires_at", "tenant"], None),
    "callgate_waits_made": ("callgate_waits", ["state", "made_at", "tenant"], None),
    "callgate_jobs_next": (
        "callgate_jobs",
        ["version", "queue", "priority", "free_at", "made_at", "id", "tenant"],
        _FREE,
    ),
    "callgate_jobs_unsent": ("callgate_jobs", ["version", "sent_at", "free_at", "id", "tenant"], _FREE),
    "callgate_jobs_end": ("callgate_jobs", ["ended_at", "tenant"], _OVER),
    "callgate_jobs_state": ("callgate_jobs", ["state", "made_at", "id", "tenant"], None),
}
"""Indexes over all tenants: table, columns after the namespace, and condition."""


def upgrade() -> None:
    """Add the columns, and put them at the head of the indexes over all tenants."""
    import sqlalchemy as sa
    from alembic import op

    for table in ("callgate_effects", "callgate_waits", "callgate_jobs"):
        column = text_column("namespace")
        column.server_default = sa.DefaultClause("")
        op.add_column(table, column)
    # The oldest revision whose code works on the schema. A migration that ends a column or its meaning sets it anew.
    op.add_column("callgate_schema", sa.Column("serves", sa.Text, nullable=False, server_default="0004"))
    for name, (table, columns, where) in _INDEXES.items():
        some = None if where is None else sa.text(where)
        op.drop_index(name, table)
        op.create_index(name, table, ["namespace", *columns], postgresql_where=some, sqlite_where=some)


def downgrade() -> None:
    """Refuse: rows of other namespaces would get lost."""
    raise NotImplementedError
