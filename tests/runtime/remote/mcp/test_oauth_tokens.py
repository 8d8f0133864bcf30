"""Tokens of OAuth clients in the gate's store: by server and user, encrypted, kept over a restart, and never in logs."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import AnyUrl

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from cryptography.fernet import MultiFernet
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from callgate import User
from callgate.errors import RegistrationError
from callgate.mcp import McpServer, OAuthTokens
from callgate.stores import MemoryStore
from tests.runtime.hosts.serving import served
from tests.runtime.remote.mcp.test_mounted import gate_with
from tests.runtime.remote.mcp.toy import Toy

pytestmark = pytest.mark.timeout(120)
KEY = "k" * 32
PLACES = [
    (server, user)
    for server in ("tools", "mail")
    for user in (None, User("ann", "acme"), User("bob", "acme"), User("ann", "evil"), User("ann"))
]
TOKEN = OAuthToken(access_token="access-secret-1", refresh_token="refresh-secret-1", expires_in=60, scope="a b")
CLIENT: Any = OAuthClientInformationFull(
    client_id="c", client_secret="client-secret-1", redirect_uris=[AnyUrl("http://127.0.0.1/done")]
)
SECRETS = [b"access-secret-1", b"refresh-secret-1", b"client-secret-1"]


def stored(path: Path) -> bytes:
    """All bytes of the database."""
    return b"".join(one.read_bytes() for one in path.parent.glob("gate.db*"))


async def test_each_server_and_user_has_its_own_tokens() -> None:
    """Nothing of one place is seen at another, and one is forgotten without the others."""
    tokens = OAuthTokens(MemoryStore(), encryption_keys=[KEY])
    for number, (server, user) in enumerate(PLACES):
        await tokens.storage(server, user).set_tokens(TOKEN.model_copy(update={"access_token": f"t{number}"}))
        await tokens.storage(server, user).set_client_info(CLIENT.model_copy(update={"client_id": f"c{number}"}))
    assert await tokens.forget(*PLACES[3])
    assert not await tokens.forget(*PLACES[3])
    for number, (server, user) in enumerate(PLACES):
        found, client = (
            await tokens.storage(server, user).get_tokens(),
            await tokens.storage(server, user).get_client_info(),
        )
        if number == 3:
            assert (found, client) == (None, None)
        else:
            assert found is not None
            assert client is not None
            assert (found.access_token, client.client_id) == (f"t{number}", f"c{number}")


@pytest.mark.parametrize("seals", [True, False], ids=["encrypted", "the control: not encrypted"])
async def test_tokens_survive_a_restart_and_are_in_no_file_and_no_log(
    seals: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process with the same store and keys reads them; the files of the store do not show them."""
    if not seals:
        monkeypatch.setattr(MultiFernet, "encrypt", lambda _, plain: plain.replace(b'"', b"'"))
    caplog.set_level(logging.DEBUG)
    path, found = tmp_path / "gate.db", list[Any]()
    for _ in range(2):
        async with gate_with(store=f"sqlite:///{path}") as gate:
            tokens = OAuthTokens(gate.store, encryption_keys=[KEY])
            at = tokens.storage("tools", User("ann", "acme"))
            found.append((await at.get_tokens(), await at.get_client_info()))
            if not found[0][0] and len(found) == 1:
                await at.set_tokens(TOKEN)
                await at.set_client_info(CLIENT)
            assert not [one for one in SECRETS if one.decode() in f"{tokens} {at} {caplog.text}"]
    shown = [one for one in SECRETS if one in stored(path)]
    if seals:
        assert found[0] == (None, None)
        token, client = found[1]
        assert (token.access_token, token.refresh_token, token.scope) == ("access-secret-1", "refresh-secret-1", "a b")
        assert client == CLIENT
        assert shown == []
    else:
        assert shown == SECRETS


async def test_a_row_that_was_moved_or_changed_is_absent() -> None:
    """A writer of the database gives no user the tokens of another one."""
    store = MemoryStore()
    tokens = OAuthTokens(store, encryption_keys=[KEY])
    places = [tokens.storage(*one) for one in PLACES]
    await places[1].set_tokens(TOKEN)
    entry = await store.cache.get(places[1].tenant, f"oauth:tokens:{places[1].place}")
    assert entry is not None
    for other in places[2:]:
        await store.cache.put(other.tenant, f"oauth:tokens:{other.place}", entry)
        assert await other.get_tokens() is None
    for wrong in (entry.value[:-9] + b'AAAAAAAA"', b'"x"', b"{}", b""):
        await store.cache.put(places[1].tenant, f"oauth:tokens:{places[1].place}", entry._replace(value=wrong))
        assert await places[1].get_tokens() is None


@pytest.mark.parametrize(("before", "after"), list(itertools.product([["a"], ["a", "b"], ["b"]], [["a"], ["b", "a"]])))
async def test_keys_are_rotated(before: list[str], after: list[str]) -> None:
    """The first key encrypts, all keys decrypt."""
    store = MemoryStore()
    await OAuthTokens(store, encryption_keys=[one * 32 for one in before]).storage("tools").set_tokens(TOKEN)
    found = await OAuthTokens(store, encryption_keys=[one * 32 for one in after]).storage("tools").get_tokens()
    assert (found is not None) == (before[0] in after)


async def test_an_expired_access_token_is_refreshed_and_given_to_no_call() -> None:
    """The seconds that are left count from when the token was issued, also in another process."""
    now = [1_000.0]
    tokens = OAuthTokens(MemoryStore(now=lambda: now[0]), encryption_keys=[KEY], clock=lambda: now[0])
    ann = User("ann")
    credential: Any = tokens.credential("tools")
    assert await credential(ann) is None
    await tokens.storage("tools", ann).set_tokens(TOKEN)
    for later, left, access in ((0, 60, "access-secret-1"), (59, 1, "access-secret-1"), (60, 0, ""), (900, 0, "")):
        now[0] = 1_000.0 + later
        found = await tokens.storage("tools", ann).get_tokens()
        assert found is not None
        assert (found.expires_in, found.access_token, found.refresh_token) == (left, access, "refresh-secret-1")
        assert await credential(ann) == (access or None)
    await tokens.storage("tools", ann).set_tokens(TOKEN.model_copy(update={"expires_in": None}))
    now[0] += 1e6
    assert await credential(ann) == "access-secret-1"


@pytest.mark.parametrize("expired", [True, False])
async def test_the_client_of_the_sdk_refreshes_after_a_restart(expired: bool) -> None:
    """It has not kept when its token expires: an expired one would be sent, and the user would have to log in again."""
    now = [1_000.0]
    tokens = OAuthTokens(MemoryStore(now=lambda: now[0]), encryption_keys=[KEY], clock=lambda: now[0])
    await tokens.storage("tools").set_tokens(TOKEN)
    await tokens.storage("tools").set_client_info(CLIENT)
    now[0] += 61 if expired else 0
    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl("http://127.0.0.1/done")])
    client = OAuthClientProvider("http://tools.example/mcp", metadata, tokens.storage("tools"))
    first = await anext(client.async_auth_flow(httpx2.Request("POST", "http://tools.example/mcp")))
    assert (b"grant_type=refresh_token" in first.content) == expired
    assert first.headers.get("authorization") == (None if expired else "Bearer access-secret-1")


async def test_calls_have_the_stored_token_of_their_user() -> None:
    """A mounted server sees the token of each user, and none for a user without one."""
    async with served(Toy().server.streamable_http_app(), timeout_graceful_shutdown=1) as running, gate_with() as gate:
        tokens = OAuthTokens(gate.store, encryption_keys=[KEY])
        url = f"http://127.0.0.1:{running.port}/mcp"
        await gate.mount(McpServer(name="toy", url=url, credential=tokens.credential("toy")))
        users = {name: User(name, "acme") for name in ("ann", "bob", "eve")}
        for name in ("ann", "bob"):
            await tokens.storage("toy", users[name]).set_tokens(TOKEN.model_copy(update={"access_token": f"of-{name}"}))
        results = await asyncio.gather(*(gate.call("toy_token", {}, user=users[name]) for name in [*users] * 5))
        assert [one.output for one in results] == ["Bearer of-ann", "Bearer of-bob", "none"] * 5


class OwnRequest(httpx2.Auth):
    """An authentication that makes a request of its own before each one, as the SDK's OAuth client does."""

    def __init__(self, url: str) -> None:
        self._url, self.made = url, list[httpx2.Request]()

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        self.made.append(httpx2.Request("POST", self._url))
        yield self.made[-1]
        yield request


async def test_requests_of_an_oauth_client_have_the_timeout_of_the_server() -> None:
    """They come without one, which ended each flow with a ``KeyError``; a silent authorization server would hold it."""
    async with served(Toy().server.streamable_http_app(), timeout_graceful_shutdown=1) as running, gate_with() as gate:
        url = f"http://127.0.0.1:{running.port}/mcp"
        auth = OwnRequest(url)
        await gate.mount(McpServer(name="toy", url=url, auth=auth, timeout=7, connect_timeout=9))
        assert (await gate.call("toy_token", {})).ok
        assert {tuple(one.extensions["timeout"].items()) for one in auth.made} == {
            (("connect", 9), ("read", 7), ("write", 7), ("pool", 7))
        }


def test_a_key_is_needed() -> None:
    for keys in ([], ["short"]):
        with pytest.raises(RegistrationError):
            OAuthTokens(MemoryStore(), encryption_keys=keys)
