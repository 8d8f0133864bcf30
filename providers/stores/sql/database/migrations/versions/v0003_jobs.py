"""The table of the job queue. See ``v0001_first`` for keys and tenants."""

from __future__ import annotations

from callgate.providers.stores.sql.database.migrations.versions.v0001_first import text_column

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_FREE_AT = "CASE state WHEN 'queued' THEN run_at WHEN 'running' THEN lease_until END"
"""The time from which a worker may take a job (see ``jobs.free_at``)."""


def upgrade() -> None:
    """Create the table."""
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_jobs",
        text_column("tenant", primary_key=True),
        text_column("id", primary_key=True),
        sa.Column("version", sa.SmallInteger, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("person", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("mac", sa.Text, nullable=False),
        sa.Column("made_at", sa.Double, nullable=False),
        sa.Column("run_at", sa.Double, nullable=False),
        text_column("queue"),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("most", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("lease_until", sa.Double),
        sa.Column("sent_at", sa.Double),
        sa.Column("stop", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("progress", sa.LargeBinary),
        sa.Column("ended_at", sa.Double),
        sa.Column("result", sa.LargeBinary),
        sa.Column("reason", sa.Text),
        sa.Column("free_at", sa.Double, sa.Computed(_FREE_AT, persisted=True)),
        # Job engines get ids without tenants, so an id is unique across tenants.
        sa.UniqueConstraint("id", name="callgate_jobs_id"),
    )
    free, running, over = "free_at IS NOT NULL", "state = 'running'", "ended_at IS NOT NULL"
    _index("next", ["version", "queue", "priority", "free_at", "made_at", "id", "tenant"], free)
    _index("unsent", ["version", "sent_at", "free_at", "id", "tenant"], free)
    _index("owner", ["owner", "tenant"], running)
    _index("end", ["ended_at", "tenant"], over)
    _index("time", ["tenant", "state", "made_at", "id"])
    _index("state", ["state", "made_at", "id", "tenant"])


def downgrade() -> None:
    """Refuse: submitted jobs must not be deleted."""
    raise NotImplementedError


def _index(name: str, columns: list[str], where: str | None = None) -> None:
    import sqlalchemy as sa
    from alembic import op

    some = None if where is None else sa.text(where)
    op.create_index(f"callgate_jobs_{name}", "callgate_jobs", columns, postgresql_where=some, sqlite_where=some)
