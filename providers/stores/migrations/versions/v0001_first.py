"""The tables of cache, quotas, places, consents and audit.

Texts that are keys are compared by code point everywhere (collation C), so that every database sorts them alike.
The tenant is part of every key and index. Audit rows can be added only: triggers refuse the rest.
"""

from __future__ import annotations

from typing import Any

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

REFUSE = "audit rows are never changed"


def upgrade() -> None:
    """Make the tables."""
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
    """There is nothing before."""
    raise NotImplementedError


def _capacity() -> None:
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_quotas",
        _text("tenant", primary_key=True),
        _text("key", primary_key=True),
        sa.Column("seconds", sa.Double, primary_key=True),
        sa.Column("period", sa.BigInteger, nullable=False),
        sa.Column("used", sa.BigInteger, nullable=False),
        sa.Column("used_before", sa.BigInteger, nullable=False),
        sa.Column("ends", sa.Double, nullable=False),
    )
    op.create_index("callgate_quotas_ends", "callgate_quotas", ["ends", "tenant"])
    op.create_table(
        "callgate_places",
        _text("tenant", primary_key=True),
        _text("key", primary_key=True),
        _text("token", primary_key=True),
        sa.Column("ends", sa.Double, nullable=False),
    )
    op.create_index("callgate_places_ends", "callgate_places", ["ends", "tenant"])


def _cache() -> None:
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_cache",
        _text("tenant", primary_key=True),
        _text("key", primary_key=True),
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
        _text("tenant", primary_key=True),
        _text("tag", primary_key=True),
        _text("key", primary_key=True),
        sa.ForeignKeyConstraint(["tenant", "key"], ["callgate_cache.tenant", "callgate_cache.key"], ondelete="CASCADE"),
    )
    op.create_index("callgate_cache_tags_key", "callgate_cache_tags", ["tenant", "key"])


def _consents() -> None:
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_consents",
        _text("tenant", primary_key=True),
        _text("person", primary_key=True),
        _text("tool", primary_key=True),
        _text("scope", primary_key=True),
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
        _text("tenant", primary_key=True),
        _text("segment", primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("version", sa.SmallInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        # A segment is one process's, whatever the tenants of its calls: a place in it is taken once.
        sa.UniqueConstraint("segment", "number", name="callgate_audit_place"),
    )
    op.create_index("callgate_audit_time", "callgate_audit", ["tenant", "at", "segment", "number"])
    op.create_table(
        "callgate_anchors",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        _text("segment"),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )


def _text(name: str, *, primary_key: bool = False) -> Any:
    import sqlalchemy as sa

    compared = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, compared, primary_key=primary_key, nullable=False)


def _lite_guard(table: str) -> list[str]:
    return [
        f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, '{REFUSE}'); END"
        for verb in ("UPDATE", "DELETE")
    ]


def _postgres_guard(table: str) -> list[str]:
    refuse = f"$$ BEGIN RAISE EXCEPTION '{REFUSE}'; END $$"
    guard = f"BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {table}_refuse()"
    return [
        f"CREATE FUNCTION {table}_refuse() RETURNS trigger LANGUAGE plpgsql AS {refuse}",
        f"CREATE TRIGGER {table}_guard {guard}",
    ]
