"""The table of invocations for workers. See ``v0001_first`` for keys and tenants."""

from __future__ import annotations

from callgate.providers.stores.migrations.versions.v0001_first import _text

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

FREE_AT = "CASE state WHEN 'queued' THEN run_at WHEN 'running' THEN lease_until END"
"""When it may be taken (see ``jobs.free_at``); workers look for nothing else."""


def upgrade() -> None:
    """Make the table."""
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_jobs",
        _text("tenant", primary_key=True),
        _text("id", primary_key=True),
        sa.Column("version", sa.SmallInteger, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("person", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("mac", sa.Text, nullable=False),
        sa.Column("made_at", sa.Double, nullable=False),
        sa.Column("run_at", sa.Double, nullable=False),
        _text("queue"),
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
        sa.Column("free_at", sa.Double, sa.Computed(FREE_AT, persisted=True)),
        # Engines are told ids without tenants: an id is taken once, whoever the job is for.
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
    """What was asked for is not thrown away."""
    raise NotImplementedError


def _index(name: str, columns: list[str], where: str | None = None) -> None:
    import sqlalchemy as sa
    from alembic import op

    some = None if where is None else sa.text(where)
    op.create_index(f"callgate_jobs_{name}", "callgate_jobs", columns, postgresql_where=some, sqlite_where=some)
