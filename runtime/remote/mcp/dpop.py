"""DPoP (RFC 9449, SEP-1932): access tokens that only the holder of a key can use. The OAuth client of the SDK has none."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable
from hashlib import sha256
from uuid import uuid4

import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from jwt.algorithms import ECAlgorithm
from mcp.client.auth import OAuthTokenError

from callgate.errors import RegistrationError

ALGORITHM = "ES256"
BEARER, DPOP = "Bearer ", "DPoP "
WANTS_NONCE = "use_dpop_nonce"


def new_key() -> str:
    """Return a new private key as PEM."""
    made = ec.generate_private_key(ec.SECP256R1())
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


class DPoP(httpx2.Auth):
    """Adds a proof to each request for a token, and to each request with one, of the authentication *beneath*.

    That one sees a token with the type ``Bearer``: the OAuth client of the SDK refuses every other type.
    """

    requires_response_body = True

    def __init__(self, beneath: httpx2.Auth, key: str | None, clock: Callable[[], float]) -> None:
        self._beneath, self._key, self._clock = beneath, _loaded(new_key() if key is None else key), clock
        self._jwk = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        self._nonces: dict[str, str] = {}  # by origin: a server replaces its own

    def __repr__(self) -> str:
        return "<DPoP>"

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """See httpx2."""
        flow = self._beneath.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                response = yield self._proven(outgoing)
                if self._keep_nonce(response) and await _wants_nonce(response):
                    response = yield self._proven(outgoing)
                    self._keep_nonce(response)
                outgoing = await flow.asend(await _as_bearer(response) if _asks_for_token(outgoing) else response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    def _proven(self, request: httpx2.Request) -> httpx2.Request:
        """Add a new proof to a request that needs one."""
        given = request.headers.get("authorization", "")
        token = next((given.removeprefix(one) for one in (BEARER, DPOP) if given.startswith(one)), None)
        if token is not None:
            request.headers["authorization"] = DPOP + token
        elif not _asks_for_token(request):
            return request
        request.headers["dpop"] = self._proof(request, token)
        return request

    def _proof(self, request: httpx2.Request, token: str | None) -> str:
        claims: dict[str, object] = {
            "jti": uuid4().hex,
            "htm": request.method,
            "htu": str(request.url.copy_with(query=None, fragment=None)),
            "iat": int(self._clock()),
        }
        nonce = self._nonces.get(_origin(request))
        if nonce is not None:
            claims["nonce"] = nonce
        if token is not None:
            claims["ath"] = base64.urlsafe_b64encode(sha256(token.encode()).digest()).rstrip(b"=").decode()
        return jwt.encode(claims, self._key, ALGORITHM, headers={"typ": "dpop+jwt", "jwk": self._jwk})

    def _keep_nonce(self, response: httpx2.Response) -> bool:
        """Keep the nonce for the next proof; return True if the response has one."""
        nonce = response.headers.get("dpop-nonce")
        if nonce is not None:
            self._nonces[_origin(response.request)] = nonce
        return nonce is not None


def _loaded(pem: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RegistrationError("dpop: key is the PEM of a private key on the curve P-256, without a password")
    return key


def _origin(request: httpx2.Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc.decode()}"


def _asks_for_token(request: httpx2.Request) -> bool:
    form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    return form and b"grant_type=" in request.content


async def _wants_nonce(response: httpx2.Response) -> bool:
    """Return True if a server refused a proof for its nonce: a resource says so in a header, a token endpoint in JSON."""
    if response.status_code == httpx2.codes.UNAUTHORIZED and WANTS_NONCE in response.headers.get(
        "www-authenticate", ""
    ):
        return True
    if not _asks_for_token(response.request) or not response.is_client_error:
        return False
    await response.aread()
    return WANTS_NONCE in response.text


async def _as_bearer(response: httpx2.Response) -> httpx2.Response:
    """Return the response to a request for a token, with the type that the client beneath knows.

    Raises:
        OAuthTokenError: the token is not bound to the key: a thief could use it.
    """
    if not response.is_success:
        return response
    await response.aread()
    try:
        answer = response.json()
    except ValueError:  # the client beneath says what is wrong with it
        return response
    if not isinstance(answer, dict) or "access_token" not in answer:
        return response
    if str(answer.get("token_type")).lower() != "dpop":
        raise OAuthTokenError("The authorization server issued a token that is not bound to the DPoP key.")
    return httpx2.Response(response.status_code, json={**answer, "token_type": "Bearer"}, request=response.request)
