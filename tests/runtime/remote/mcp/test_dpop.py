"""DPoP proofs of an OAuth client: on requests for a token, on requests with one, and after a server asks for its nonce."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs

import httpx2
import jwt
import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from mcp.client.auth import OAuthTokenError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider

from callgate import User
from callgate.errors import RegistrationError
from callgate.mcp import OAuthTokens, dpop
from callgate.stores import MemoryStore

NOW = 1_000.0
SERVER, ISSUER = "https://tools.example", "https://login.example"
KEY = "k" * 32


def thumbprint(jwk: dict[str, Any]) -> str:
    """The thumbprint of a key on a curve (RFC 7638)."""
    members = json.dumps({name: jwk[name] for name in ("crv", "kty", "x", "y")}, separators=(",", ":"))
    return encoded(members)


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(sha256(text.encode()).digest()).rstrip(b"=").decode()


class Servers:
    """An authorization server and an MCP server that check each proof. With *nonces*, each response has the next nonce."""

    def __init__(self, *, nonces: bool = False, token_type: str = "DPoP", always_asks: bool = False) -> None:
        self.nonces, self.token_type, self.always_asks = nonces, token_type, always_asks
        self.number: dict[str, int] = {SERVER: 0, ISSUER: 0}
        self.seen: list[tuple[str, str, int]] = []
        self.proofs: list[dict[str, Any]] = []
        self.bound: dict[str, str] = {}

    def client(self, auth: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer), auth=auth)

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        origin = f"{request.url.scheme}://{request.url.host}"
        response = self.respond(request, origin)
        if self.nonces and request.url.path in ("/mcp", "/token"):
            self.number[origin] += 1
            response.headers["dpop-nonce"] = f"{origin} {self.number[origin]}"
        self.seen.append((request.method, request.url.path, response.status_code))
        return response

    def respond(self, request: httpx2.Request, origin: str) -> httpx2.Response:
        path = request.url.path
        if path == "/mcp":
            return self.tools(request)
        if path == "/token":
            return self.token(request)
        if path.startswith("/.well-known/oauth-protected-resource"):
            return httpx2.Response(200, json={"resource": f"{SERVER}/mcp", "authorization_servers": [ISSUER]})
        if path == "/.well-known/oauth-authorization-server" and origin == ISSUER:
            known = {"issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/x", "token_endpoint": f"{ISSUER}/token"}
            return httpx2.Response(200, json=known | {"response_types_supported": ["code"]})
        return httpx2.Response(404)

    def proof(self, request: httpx2.Request, origin: str) -> tuple[dict[str, Any], str, bool]:
        """Check a proof; return its claims, the thumbprint of its key, and whether its nonce is the server's."""
        (text,) = request.headers.get_list("dpop")
        head = jwt.get_unverified_header(text)
        assert (head["typ"], head["alg"], "d" in head["jwk"]) == ("dpop+jwt", "ES256", False)
        claims: dict[str, Any] = jwt.decode(text, jwt.PyJWK(head["jwk"], "ES256"), options={"verify_iat": False})
        assert claims["htm"] == request.method
        assert claims["htu"] == f"{origin}{request.url.path}"
        assert claims["iat"] == NOW
        assert claims["jti"] not in [one["jti"] for one in self.proofs], "a proof is used once"
        self.proofs.append(claims)
        current = not self.nonces or claims.get("nonce") == f"{origin} {self.number[origin]}"
        return claims, thumbprint(head["jwk"]), current and not self.always_asks

    def tools(self, request: httpx2.Request) -> httpx2.Response:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        known = f'DPoP resource_metadata="{SERVER}/.well-known/oauth-protected-resource/mcp"'
        if kind != "DPoP" or token not in self.bound:
            return httpx2.Response(401, headers={"www-authenticate": known})
        claims, key, current = self.proof(request, SERVER)
        if claims["ath"] != encoded(token) or key != self.bound[token]:
            return httpx2.Response(401, headers={"www-authenticate": f'{known}, error="invalid_token"'})
        if not current:
            return httpx2.Response(401, headers={"www-authenticate": f'{known}, error="use_dpop_nonce"'})
        return httpx2.Response(200, json={"ok": True})

    def token(self, request: httpx2.Request) -> httpx2.Response:
        assert parse_qs(request.content.decode())["grant_type"] == ["client_credentials"]
        if "dpop" not in request.headers:
            return httpx2.Response(400, json={"error": "invalid_dpop_proof"})
        claims, key, current = self.proof(request, ISSUER)
        assert "ath" not in claims
        if not current:
            return httpx2.Response(400, json={"error": "use_dpop_nonce"})
        token = f"token-{len(self.bound)}"
        self.bound[token] = key
        return httpx2.Response(200, json={"access_token": token, "token_type": self.token_type, "expires_in": 60})


def provider(storage: Any = None) -> httpx2.Auth:
    """The OAuth client of the SDK that needs no browser."""
    kept = storage or OAuthTokens(MemoryStore(now=lambda: NOW), encryption_keys=[KEY], clock=lambda: NOW).storage(
        "tools"
    )
    return ClientCredentialsOAuthProvider(f"{SERVER}/mcp", kept, client_id="c", client_secret="s", issuer=ISSUER)


def proven(auth: httpx2.Auth | None = None, key: str | None = None) -> Any:
    return dpop(auth or provider(), key=key, clock=lambda: NOW)


@pytest.mark.parametrize("nonces", [False, True])
async def test_each_request_with_a_token_has_a_proof_of_its_own(nonces: bool) -> None:
    """The address in a proof has no query. A nonce is asked for once by each server; later ones come with responses."""
    servers = Servers(nonces=nonces)
    async with servers.client(proven()) as client:
        for number in range(3):
            assert (await client.post(f"{SERVER}/mcp?call={number}", json={})).json() == {"ok": True}
    refused = [(path, status) for _, path, status in servers.seen if status in (400, 401)]
    # The first response of each server has its nonce, also the one that refuses a request without a token.
    assert refused == [("/mcp", 401)] + [("/token", 400)] * nonces
    assert len(servers.proofs) == 4 + nonces


async def test_the_client_without_proofs_gets_no_token() -> None:
    """The control: these servers refuse the client beneath."""
    servers = Servers()
    async with servers.client(provider()) as client:
        with pytest.raises(OAuthTokenError):
            await client.post(f"{SERVER}/mcp", json={})
    assert servers.bound == {}


async def test_a_token_that_is_not_bound_to_the_key_is_refused() -> None:
    """A thief could use it, so it is not kept."""
    servers = Servers(token_type="Bearer")
    kept = OAuthTokens(MemoryStore(), encryption_keys=[KEY]).storage("tools")
    async with servers.client(proven(provider(kept))) as client:
        with pytest.raises(OAuthTokenError, match="not bound"):
            await client.post(f"{SERVER}/mcp", json={})
    assert await kept.get_tokens() is None


@pytest.mark.parametrize("same_key", [True, False])
async def test_a_token_is_of_use_with_its_key_only(same_key: bool) -> None:
    """Another process with the key uses the token that is kept; one with another key needs a new token."""
    servers, tokens = Servers(), OAuthTokens(MemoryStore(now=lambda: NOW), encryption_keys=[KEY], clock=lambda: NOW)
    keys = [await tokens.dpop_key("tools"), await tokens.dpop_key("tools" if same_key else "others")]
    assert (keys[0] == keys[1]) is same_key
    for key in keys:
        async with servers.client(proven(provider(tokens.storage("tools")), key)) as client:
            assert (await client.post(f"{SERVER}/mcp", json={})).is_success
    assert len(servers.bound) == (1 if same_key else 2)


async def test_the_key_of_a_user_is_theirs_and_is_forgotten_with_the_tokens() -> None:
    tokens = OAuthTokens(MemoryStore(), encryption_keys=[KEY])
    ann, bob = User("ann"), User("bob")
    key = await tokens.dpop_key("tools", ann)
    assert key == await tokens.dpop_key("tools", ann)
    assert key != await tokens.dpop_key("tools", bob)
    assert await tokens.forget("tools", ann)
    assert key != await tokens.dpop_key("tools", ann)


async def test_a_server_that_asks_for_a_nonce_without_end_is_answered_once() -> None:
    servers = Servers(nonces=True, always_asks=True)
    async with servers.client(proven()) as client:
        with pytest.raises(OAuthTokenError):
            await client.post(f"{SERVER}/mcp", json={})
    assert [path for _, path, _ in servers.seen].count("/token") == 2


def pem(key: Any) -> str:
    text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text.decode()


@pytest.mark.parametrize(
    "key", ["", "no key", pem(rsa.generate_private_key(65537, 2048)), pem(ec.generate_private_key(ec.SECP384R1()))]
)
def test_a_key_of_another_kind_is_refused(key: str) -> None:
    with pytest.raises(RegistrationError, match="P-256"):
        dpop(provider(), key=key)


def test_the_key_is_in_no_text() -> None:
    key = pem(ec.generate_private_key(ec.SECP256R1()))
    assert repr(dpop(provider(), key=key)) == "<DPoP>"
