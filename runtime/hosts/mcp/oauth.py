"""The server as an OAuth resource server."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from callgate.errors import RegistrationError
from callgate.providers.kinds import check_fields
from callgate.tools.calls import User


@dataclass(frozen=True, slots=True)
class OAuth:
    """The server as an OAuth resource server: who issues its tokens, and how they are verified.

    The SDK serves the metadata of RFC 9728 and refuses requests without a valid token with 401.

    Args:
        issuer: the URL of the authorization server.
        resource: the public URL of this server, such as ``https://tools.example/mcp``. A token for another resource is
            refused.
        verifier: a ``TokenVerifier`` of the SDK: ``async def verify_token(token) -> AccessToken | None``. It has to set
            ``AccessToken.resource``, and ``subject`` for tokens of people.
        scopes: the scopes that every token needs.
        roles: roles of Callgate by scope, such as ``{"desk:lead": {"lead"}}``.
        user_of: returns the user of an ``AccessToken``, or None to refuse it. Default: the subject, else the client, as
            ``User(id)`` with the token's scopes, the roles of these scopes, and the claim ``tenant``, which has to be a text.

    Raises:
        RegistrationError: a setting is of another type.
    """

    issuer: str
    resource: str
    verifier: object
    scopes: Collection[str] = ()
    roles: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]])
    user_of: Callable[[Any], User | None] | None = None

    def __post_init__(self) -> None:
        check_fields(self, RegistrationError)
        if inspect.iscoroutinefunction(self.user_of):
            raise RegistrationError("OAuth: user_of is not async: do its I/O in the verifier")
