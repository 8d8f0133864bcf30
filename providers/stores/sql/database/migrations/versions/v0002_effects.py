"""The tables of effects, suspended calls and pinned tools. See ``v0001_first`` for keys and tenants."""

from __future__ import annotations

from callgate.providers.stores.sql.database.migrations.versions.v0001_first import text_column

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    _effects()
    _waits()
    _pins()


def downgrade() -> None:
    """Refuse: the effect ledger must not be deleted."""
    raise NotImplementedError


def _effects() -> None:
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_effects",
        text_column("tenant", primary_key=True),
        text_column("key", primary_key=True),
        sa.Column("version", sa.SmallInteger, nullable=False),
        text_column("tool"),
        sa.Column("tool_version", sa.Text, nullable=False),
        sa.Column("person", sa.Text, nullable=False),
        sa.Column("input_hash", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("began_at", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("session_id", sa.Text),
        sa.Column("call_id", sa.Text),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("ended_at", sa.Double),
        sa.Column("expires_at", sa.Double),
        sa.Column("receipt", sa.LargeBinary),
        sa.Column("note", sa.Text),
    )
    op.create_index("callgate_effects_lease", "callgate_effects", ["state", "lease_until", "tenant"])
    op.create_index("callgate_effects_end", "callgate_effects", ["state", "ended_at", "tenant"])
    op.create_index("callgate_effects_time", "callgate_effects", ["tenant", "began_at", "key"])


def _waits() -> None:
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_waits",
        text_column("tenant", primary_key=True),
        text_column("id", primary_key=True),
        sa.Column("version", sa.SmallInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("person", sa.Text, nullable=False),
        sa.Column("made_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("mac", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
    )
    op.create_index("callgate_waits_due", "callgate_waits", ["state", "expires_at", "tenant"])
    op.create_index("callgate_waits_made", "callgate_waits", ["state", "made_at", "tenant"])
    op.create_index("callgate_waits_time", "callgate_waits", ["tenant", "state", "made_at", "id"])


def _pins() -> None:
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_pins",
        text_column("tenant", primary_key=True),
        text_column("provider", primary_key=True),
        text_column("tool", primary_key=True),
        sa.Column("version", sa.SmallInteger, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("person", sa.Text),
    )
