"""A principal as JSON, and back: for what waits or runs in another process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate.providers.principal import User


def user_as_json(user: User) -> dict[str, Any]:
    """A user, with roles and scopes in order: the same user has the same JSON."""
    return {"id": user.id, "tenant": user.tenant, "roles": sorted(user.roles), "scopes": sorted(user.scopes)}


def user_from_json(data: Mapping[str, Any]) -> User:
    """The user that ``user_as_json`` wrote.

    Raises:
        KeyError, TypeError: it is none.
    """
    return User(data["id"], data["tenant"], tuple(data["roles"]), tuple(data["scopes"]))
