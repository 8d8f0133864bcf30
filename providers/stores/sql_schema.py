"""The migrations of the SQL schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from callgate.errors import StoreError


def upgrade_schema(connection: Any) -> None:
    """Migrate the schema to ``HEAD`` within the open transaction."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(
            f"the schema cannot be migrated: {error}; a newer Callgate may have written it, so upgrade Callgate"
        ) from None
