"""Link the source folders into src/callgate when installing in editable mode.

The wheel maps the folders by name (see pyproject.toml) and needs no links.
"""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("runtime", "hooks", "providers", "tools")


class LinkFolders(BuildHookInterface[Any]):
    """Make ``import callgate.hooks`` find ``hooks/`` in a checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Create the links that are missing; touch nothing else."""
        if version != "editable":
            return
        root = Path(self.root)
        for folder in FOLDERS:
            link = root / "src" / "callgate" / folder
            if not link.exists():
                link.unlink(missing_ok=True)  # a link to nowhere
                connect(link, root / folder)


def connect(link: Path, folder: Path) -> None:
    """Make *link* show *folder*; a junction on Windows needs no privilege."""
    if sys.platform == "win32":
        import _winapi

        _winapi.CreateJunction(str(folder), str(link))
    else:
        link.symlink_to(Path("..", "..", folder.name), target_is_directory=True)
