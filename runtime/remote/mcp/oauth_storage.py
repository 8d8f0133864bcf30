"""The ``TokenStorage`` of the SDK over ``OAuthTokens``."""

from __future__ import annotations

from dataclasses import dataclass

from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from callgate.runtime.remote.mcp.oauth_tokens import OAuthTokens


@dataclass(frozen=True, slots=True)
class ServerTokens:
    """The ``TokenStorage`` of the SDK for one server, or one user of it."""

    tokens: OAuthTokens
    tenant: str
    place: str

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens. An access token that has expired is empty, which makes the SDK refresh it."""
        found = await self.tokens.read(self.tenant, self.place, "tokens")
        if found is None:
            return None
        token, left = OAuthToken.model_validate_json(found[0]), self.tokens.left(found[1])
        if left is not None and left <= 0:
            return token.model_copy(update={"access_token": "", "expires_in": 0})
        return token.model_copy(update={"expires_in": left})

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep the tokens."""
        await self.tokens.write(self.tenant, self.place, "tokens", tokens.model_dump_json(), tokens.expires_in)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the registration of the client at the authorization server."""
        found = await self.tokens.read(self.tenant, self.place, "client")
        return None if found is None else OAuthClientInformationFull.model_validate_json(found[0])

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep the registration."""
        await self.tokens.write(self.tenant, self.place, "client", client_info.model_dump_json())
