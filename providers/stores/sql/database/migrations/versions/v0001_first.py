"""The tables of the cache, rate limits, concurrency limits, consents and the audit log.

Keys are compared by code point (collation C), so that every database sorts them equally. The tenant is part of every key
and index. Triggers refuse updates and deletes of audit rows.
"""

from __future__ import annotations

from typing import Any

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_REFUSE = "audit rows are never changed"


def upgrade() -> None:
    """Create the tables."""
    from alembic import op

    lite = op.get_bind().dialect.name == "sqlite"
    _capacity()
    _cache()
    _consents()
    _audit()
    for table in ("callgate_audit", "callgate_anchors"):
        for statement in _lite_guard(table) if lite else _postgres_guard(table):
            op.execute(statement)


def downgrade() -> None:
    """Refuse: this is the first version."""
    raise NotImplementedError


def _capacity() -> None:
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_quotas",
        text_column("tenant", primary_key=True),
        text_column("key", primary_key=True),
        sa.Column("seconds", sa.Double, primary_key=True),
        sa.Column("period", sa.BigInteger, nullable=False),
        sa.Column("used", sa.BigInteger, nullable=False),
        sa.Column("used_before", sa.BigInteger, nullable=False),
        sa.Column("ends", sa.Double, nullable=False),
    )
    op.create_index("callgate_quotas_ends", "callgate_quotas", ["ends", "tenant"])
    op.create_table(
        "callgate_places",
        text_column("tenant", primary_key=True),
        text_column("key", primary_key=True),
        text_column("token", primary_key=True),
        sa.Column("ends", sa.Double, nullable=False),
    )
    op.create_index("callgate_places_ends", "callgate_places", ["ends", "tenant"])


def _cache() -> None:
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_cache",
        text_column("tenant", primary_key=True),
        text_column("key", primary_key=True),
        sa.Column("version", sa.SmallInteger, nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("made_at", sa.Double, nullable=False),
        sa.Column("fresh_until", sa.Double, nullable=False),
        sa.Column("stale_until", sa.Double, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
    )
    op.create_index("callgate_cache_stale", "callgate_cache", ["stale_until", "tenant"])
    op.create_table(
        "callgate_cache_tags",
        text_column("tenant", primary_key=True),
        text_column("tag", primary_key=True),
        text_column("key", primary_key=True),
        sa.ForeignKeyConstraint(["tenant", "key"], ["callgate_cache.tenant", "callgate_cache.key"], ondelete="CASCADE"),
    )
    op.create_index("callgate_cache_tags_key", "callgate_cache_tags", ["tenant", "key"])


def _consents() -> None:
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_consents",
        text_column("tenant", primary_key=True),
        text_column("person", primary_key=True),
        text_column("tool", primary_key=True),
        text_column("scope", primary_key=True),
        sa.Column("version", sa.SmallInteger, nullable=False),
        sa.Column("granted_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    op.create_index("callgate_consents_expiry", "callgate_consents", ["expires_at", "tenant"])


def _audit() -> None:
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_audit",
        text_column("tenant", primary_key=True),
        text_column("segment", primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("version", sa.SmallInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        # A segment belongs to one process, for all tenants; its numbers are unique.
        sa.UniqueConstraint("segment", "number", name="callgate_audit_place"),
    )
    op.create_index("callgate_audit_time", "callgate_audit", ["tenant", "at", "segment", "number"])
    op.create_table(
        "callgate_anchors",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        text_column("segment"),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )


def text_column(name: str, *, primary_key: bool = False) -> Any:
    """Return a column of text that is compared by code point."""
    import sqlalchemy as sa

    compared = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, compared, primary_key=primary_key, nullable=False)


def _lite_guard(table: str) -> list[str]:
    return [
        f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, '{_REFUSE}'); END"
        for verb in ("UPDATE", "DELETE")
    ]


def _postgres_guard(table: str) -> list[str]:
    refuse = f"$$ BEGIN RAISE EXCEPTION '{_REFUSE}'; END $$"
    guard = f"BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {table}_refuse()"
    return [
        f"CREATE FUNCTION {table}_refuse() RETURNS trigger LANGUAGE plpgsql AS {refuse}",
        f"CREATE TRIGGER {table}_guard {guard}",
    ]
