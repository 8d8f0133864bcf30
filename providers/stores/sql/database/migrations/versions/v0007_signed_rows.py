"""The signatures of rows, the counters of their versions, and two names: permits and the maximum of attempts.

An older version of Callgate does not know the new names, so this schema does not serve it.
"""

from __future__ import annotations

from callgate.providers.stores.sql.database.migrations.versions.v0001_first import text_column

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_SIGNED = {
    "callgate_effects": "mac",
    "callgate_jobs": "result_mac",  # ``mac`` signs the call
    "callgate_cache": "mac",
    "callgate_consents": "mac",
    "callgate_pins": "mac",
}
"""Tables, and the column of the signatures of their rows."""


def upgrade() -> None:
    """Rename the table of permits and a column of jobs, and add the signatures. Every row stays."""
    import sqlalchemy as sa
    from alembic import op

    op.drop_index("callgate_places_ends", "callgate_places")
    op.rename_table("callgate_places", "callgate_permits")
    op.create_index("callgate_permits_ends", "callgate_permits", ["ends", "tenant"])
    op.execute("ALTER TABLE callgate_jobs RENAME COLUMN most TO max_attempts")
    if op.get_bind().dialect.name != "sqlite":
        op.execute("ALTER INDEX callgate_places_pkey RENAME TO callgate_permits_pkey")
    for table, column in _SIGNED.items():
        op.add_column(table, sa.Column(column, sa.Text))
    op.create_table(
        "callgate_versions",
        text_column("tenant", primary_key=True),
        text_column("kind", primary_key=True),
        text_column("key", primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("latest", sa.Text, nullable=False),
        sa.Column("ends", sa.Double),
        sa.Column("mac", sa.Text, nullable=False),
    )
    op.create_index("callgate_versions_ends", "callgate_versions", ["ends", "tenant"])
    op.execute("UPDATE callgate_schema SET serves = '0007'")


def downgrade() -> None:
    """Refuse: rows without signatures could not be told from rows that were changed."""
    raise NotImplementedError
