"""The JSON form of a principal, for suspended calls and jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate.providers.principal import User, plain


def user_as_json(user: User) -> dict[str, Any]:
    """Return the JSON of a user, without the token. Roles and scopes are sorted, so equal users have equal JSON."""
    made = {"id": user.id, "tenant": user.tenant, "roles": sorted(user.roles), "scopes": sorted(user.scopes)}
    return made | {"claims": plain(user.claims)} if user.claims else made


def user_from_json(data: Mapping[str, Any]) -> User:
    """Return the user of a JSON object from ``user_as_json``.

    Raises:
        KeyError, TypeError: the object is not the JSON of a user.
    """
    return User(data["id"], data["tenant"], tuple(data["roles"]), tuple(data["scopes"]), claims=data.get("claims", {}))
