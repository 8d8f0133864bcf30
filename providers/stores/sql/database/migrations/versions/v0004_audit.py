"""Checkpoints and cursors of the audit log. Rows and anchors that a pruning checkpoint covers can be deleted."""

from __future__ import annotations

from callgate.providers.stores.sql.database.migrations.versions.v0001_first import text_column

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_REFUSE = "audit rows are never changed"
_COVERED = """EXISTS (
  SELECT 1 FROM {checkpoints} c
  WHERE c.segment = OLD.segment AND c.kind = 'pruned' AND c.number >= OLD.number
)"""
_GUARDED = (
    ("callgate_audit", _COVERED),
    ("callgate_anchors", _COVERED),
    ("callgate_audit_checkpoints", "OLD.kind <> 'pruned'"),
)
"""Tables, and the condition under which a row may be deleted. Updates are refused."""


def upgrade() -> None:
    """Create the tables, and replace the triggers that refuse every delete."""
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "callgate_audit_checkpoints",
        text_column("segment", primary_key=True),
        text_column("kind", primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("mac", sa.Text, nullable=False),
    )
    op.create_table(
        "callgate_audit_cursors",
        text_column("name", primary_key=True),
        text_column("segment", primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
    )
    op.create_index("callgate_anchors_place", "callgate_anchors", ["segment", "number", "hash"])
    continued = sa.text("number = 1")
    op.create_index(
        "callgate_audit_continued",
        "callgate_audit",
        ["previous", "tenant"],
        postgresql_where=continued,
        sqlite_where=continued,
    )
    bind = op.get_bind()
    lite = bind.dialect.name == "sqlite"
    checkpoints = "callgate_audit_checkpoints"
    if not lite:  # with its schema: a temporary table of that name must not be found first
        checkpoints = f"{bind.exec_driver_sql('SELECT quote_ident(current_schema())').scalar()}.{checkpoints}"
    for table, condition in _GUARDED:
        allowed = condition.format(checkpoints=checkpoints)
        for statement in _lite_guard(table, allowed) if lite else _postgres_guard(table, allowed):
            op.execute(statement)


def downgrade() -> None:
    """Refuse: pruning checkpoints must not be deleted."""
    raise NotImplementedError


def _lite_guard(table: str, allowed: str) -> list[str]:
    refuse = f"BEGIN SELECT RAISE(ABORT, '{_REFUSE}'); END"
    return [
        f"DROP TRIGGER IF EXISTS {table}_update",
        f"DROP TRIGGER IF EXISTS {table}_delete",
        f"CREATE TRIGGER {table}_update BEFORE UPDATE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_delete BEFORE DELETE ON {table} WHEN NOT ({allowed}) {refuse}",
    ]


def _postgres_guard(table: str, allowed: str) -> list[str]:
    refuse = f"RAISE EXCEPTION '{_REFUSE}'"
    delete = f"IF {allowed} THEN RETURN OLD; END IF; {refuse};"
    return [
        f"CREATE OR REPLACE FUNCTION {table}_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {refuse}; END $$",
        f"CREATE FUNCTION {table}_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {delete} END $$",
        f"DROP TRIGGER IF EXISTS {table}_guard ON {table}",
        f"CREATE TRIGGER {table}_guard BEFORE UPDATE OR TRUNCATE ON {table} EXECUTE FUNCTION {table}_refuse()",
        f"CREATE TRIGGER {table}_guard_delete BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_delete()",
    ]
