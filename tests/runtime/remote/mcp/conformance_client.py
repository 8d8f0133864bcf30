"""The client that the official conformance suite tests: a gate that mounts the server of a scenario and calls its tools.

The suite runs it as ``python -m tests.runtime.remote.mcp.conformance_client URL`` for each scenario of its client leg,
with the name of the scenario, its version and its data in the environment. ``make test-mcp`` runs the suite.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata
from pydantic import AnyUrl

from callgate import Gate, Respond, ToolResult, User
from callgate.hooks import Authorize, permit
from callgate.mcp import McpServer, OAuthTokens, dpop
from callgate.runtime.remote.mcp.face import Mounted
from tests.harness.gate_options import gate_options

KEY = "k" * 32
USER = User("ann")
RETURN_TO = "http://127.0.0.1:1/callback"
METADATA_URL = "https://conformance-test.local/client-metadata.json"
"""The suite knows this document by its address, and fetches nothing."""
SECONDS = 20.0
"""Deadline of one call."""
ROUNDS = 4
"""Maximum number of questions of one call."""


class Browser:
    """The browser of a user who agrees: it follows the redirect of the authorization server."""

    def __init__(self) -> None:
        self._sent: dict[str, list[str]] = {}

    async def visit(self, url: str) -> None:
        """Open the page of the authorization server."""
        async with httpx2.AsyncClient(trust_env=False) as client:
            response = await client.get(url)
        self._sent = parse_qs(urlsplit(response.headers["location"]).query)

    async def result(self) -> AuthorizationCodeResult:
        """Return what the server sent with the redirect."""
        code, state, iss = (self._sent.get(key, [None])[0] for key in ("code", "state", "iss"))
        return AuthorizationCodeResult(code=code or "", state=state, iss=iss)


async def oauth(scenario: str, url: str, context: Mapping[str, Any], storage: Any) -> httpx2.Auth:
    """Return the OAuth client of the SDK that a scenario asks for."""
    known: dict[str, Any] = {"server_url": url, "storage": storage, "client_id": context.get("client_id", "")}
    if scenario == "auth/client-credentials-basic":
        return ClientCredentialsOAuthProvider(**known, client_secret=context["client_secret"])
    if scenario == "auth/client-credentials-jwt":
        signed = SignedJWTParameters(
            issuer=context["client_id"],
            subject=context["client_id"],
            signing_key=context["private_key_pem"],
            signing_algorithm=context["signing_algorithm"],
        )
        return PrivateKeyJWTOAuthProvider(**known, assertion_provider=signed.create_assertion_provider())
    if scenario == "auth/enterprise-managed-authorization":
        return await enterprise(known, context)
    if scenario == "auth/pre-registration":
        registered = OAuthClientInformationFull(
            client_id=context["client_id"],
            client_secret=context["client_secret"],
            redirect_uris=[AnyUrl(RETURN_TO)],
            token_endpoint_auth_method="client_secret_basic",
            issuer=context["issuer"],
        )
        await storage.set_client_info(registered)
    browser = Browser()
    metadata = OAuthClientMetadata(
        client_name="callgate",
        redirect_uris=[AnyUrl(RETURN_TO)],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
    )
    return OAuthClientProvider(url, metadata, storage, browser.visit, browser.result, METADATA_URL)


async def enterprise(known: Mapping[str, Any], context: Mapping[str, Any]) -> httpx2.Auth:
    """Return the client whose users sign in at the identity provider of their enterprise."""

    async def assertion(audience: str, resource: str) -> str:
        asked = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "subject_token": context["idp_id_token"],
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "client_id": context["idp_client_id"],
            "audience": audience,
            "resource": resource,
        }
        token: str = (await requested(context["idp_token_endpoint"], asked))["access_token"]
        return token

    return IdentityAssertionOAuthProvider(
        **known,
        client_secret=context["client_secret"],
        issuer=await issuer_of(known["server_url"]),
        assertion_provider=assertion,
        token_endpoint_auth_method="client_secret_basic",
    )


async def workload_token(url: str, context: Mapping[str, Any]) -> str:
    """Exchange the token of a workload for an access token, as an application does that has its own OAuth client."""
    metadata = await requested(f"{await issuer_of(url)}/.well-known/oauth-authorization-server")
    asked = {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": context["valid_jwt"],
        "client_id": context["client_id"],
    }
    token: str = (await requested(metadata["token_endpoint"], asked))["access_token"]
    return token


async def issuer_of(url: str) -> str:
    """Return the authorization server of a server: the suite does not say it, though it is a setting of such clients."""
    address = urlsplit(url)
    found = await requested(f"{address.scheme}://{address.netloc}/.well-known/oauth-protected-resource{address.path}")
    issuer: str = found["authorization_servers"][0]
    return issuer.rstrip("/")


async def requested(url: str, form: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON that a server sends, after a form if there is one."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        response = await client.get(url) if form is None else await client.post(url, data=dict(form))
    return response.raise_for_status().json()


def sample(schema: Mapping[str, Any]) -> Any:
    """Return a value of a schema: its default, the first of an enum, or a value of its type."""
    if "default" in schema:
        return schema["default"]
    if "enum" in schema:
        return schema["enum"][0]
    properties: Mapping[str, Any] = schema.get("properties", {})
    by_type: dict[str, Any] = {"integer": 2, "number": 2, "boolean": True, "array": []}
    by_type["object"] = {name: sample(one) for name, one in properties.items() if name in schema.get("required", ())}
    return by_type.get(schema.get("type", "object" if properties else "string"), "x")


def answer(schema: Mapping[str, Any]) -> Any:
    """Return an answer to a question, with each of its members."""
    return sample({**schema, "required": list(schema.get("properties", {}))})


async def call(gate: Gate, name: str, arguments: Any) -> ToolResult:
    """Call a tool, and answer its questions."""
    done = await gate.call(name, arguments, user=USER, deadline=SECONDS)
    for _ in range(ROUNDS):
        if done.pending is None:
            break
        done = await gate.resume(done.pending.handle, Respond(answer(done.pending.schema)), approver=USER)
    return done


async def use(gate: Gate, mounted: Mounted, context: Mapping[str, Any]) -> list[ToolResult]:
    """Call the tools that the scenario lists, or else every tool once."""
    here = {remote: name for name, remote in mounted.tools.items()}
    schemas: dict[str, Any] = {
        one.name: gate.registry.get(one.name).definition.parameters for one in gate.tools_for(USER)
    }
    if "json_schema_echo" in here:
        schema = json.loads(json.dumps(schemas[here["json_schema_2020_12_tool"]]))
        return [await call(gate, here["json_schema_echo"], {"schema": schema})]
    listed: list[dict[str, Any]] = context.get("toolCalls") or [
        {"name": remote, "arguments": sample({"type": "object", **schemas[name]})} for remote, name in here.items()
    ]
    # A null for an optional parameter of another type breaks the schema of its tool: the gate refuses it. It is left out.
    return [
        await call(
            gate, here[one["name"]], {key: value for key, value in one["arguments"].items() if value is not None}
        )
        for one in listed
    ]


async def main() -> None:
    """Play the client of one scenario. The suite judges what its server has seen."""
    url, scenario = sys.argv[-1], os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    version = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
    options = gate_options(signing_keys=[KEY], durable=False, store="memory://")
    async with Gate([], [Authorize(permit("everybody"))], **options) as gate:
        access: dict[str, Any] = {}
        if scenario == "auth/wif-jwt-bearer":
            access["headers"] = {"authorization": f"Bearer {await workload_token(url, context)}"}
        elif scenario.startswith("auth/"):
            tokens = OAuthTokens(gate.store, encryption_keys=[KEY])
            access["auth"] = await oauth(scenario, url, context, tokens.storage("conformance"))
            if scenario.startswith("auth/dpop"):
                access["auth"] = dpop(access["auth"], key=await tokens.dpop_key("conformance"))
        legacy = version < "2026"
        mounted = await gate.mount(
            McpServer(name="conformance", url=url, legacy=legacy, connect_timeout=SECONDS, **access)
        )
        for left_out, why in mounted.refused.items():
            sys.stderr.write(f"left out: {left_out}: {why}\n")
        for done in await use(gate, mounted, context):
            sys.stderr.write(f"{done.outcome} {done.error or done.output}\n")


if __name__ == "__main__":
    asyncio.run(main())
