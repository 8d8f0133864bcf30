"""The OpenAPI document is true: a generator of requests that believes it finds no server error and no surprise."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import httpx
import pytest
from pydantic import BaseModel, Field

import callgate
from callgate import User, tool
from callgate.runtime.hosts.asgi.spec import embedded, openapi
from tests.runtime.hosts.catalogue import PAIR, catalogue
from tests.runtime.hosts.making import ANN, MAX, Desk, who
from tests.runtime.hosts.serving import served

# What the gate refuses whatever a schema says (NUL characters, endless digits) passes for valid there.
EXCEPT = "positive_data_acceptance"


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


async def schemathesis(app: Any, folder: Path, examples: int, seconds: float, *more: str) -> tuple[int, int, str]:
    """Exit code, number of requests and what it printed."""
    async with served(app) as running:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"),
            *(f"http://127.0.0.1:{running.port}/openapi.json", "-H", "Authorization: Bearer ann"),
            *("--exclude-checks", EXCEPT, "--phases", "coverage,fuzzing", "--continue-on-failure"),
            *("-n", str(examples), "--seed", "20", "--no-color", "--suppress-health-check", "all", *more),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            printed = (await asyncio.wait_for(process.communicate(), seconds))[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    found = re.search(r"(\d+) generated", printed)
    return process.returncode or 0, int(found[1]) if found else 0, printed


async def test_a_generator_of_requests_finds_no_server_error(tmp_path: Path) -> None:
    """Valid and invalid requests; statuses, media types and bodies are as the document says."""
    code, cases, printed = await schemathesis(callgate.asgi(catalogue(), authenticate=who), tmp_path, 5, 500)
    assert code == 0, printed
    assert cases > 100


async def test_the_generator_would_have_found_one(tmp_path: Path) -> None:
    """The control: a tool that fails is found."""
    desk = Desk()
    desk.go.set()
    code, _, printed = await schemathesis(
        callgate.asgi(desk.gate, authenticate=who), tmp_path, 2, 500, "--include-path", "/tools/broken"
    )
    assert code != 0
    assert "Server error" in printed


@pytest.mark.soak
async def test_two_thousand_requests_find_no_server_error(tmp_path: Path) -> None:
    code, cases, printed = await schemathesis(callgate.asgi(catalogue(), authenticate=who), tmp_path, 250, 1800)
    print(f"schemathesis: {cases} cases")
    assert code == 0, printed
    assert cases >= 2000


def test_references_lead_to_where_the_schema_now_lies() -> None:
    """Contract 11: and what merely looks like one, in data or as a property's name, is left as it is."""
    schema = {**PAIR, "properties": {**PAIR["properties"], "kind": {"const": {"$ref": "#/not/a/reference"}}}}
    made = embedded(schema, "pair.arguments")
    assert made["properties"]["right"] == {"$ref": "#/components/schemas/pair.arguments/properties/left"}
    assert made["properties"]["$ref"] == PAIR["properties"]["$ref"]
    assert made["properties"]["kind"] == {"const": {"$ref": "#/not/a/reference"}}
    assert not {"$id", "$schema"} & set(made)
    assert embedded({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#"}}}, "t") == {
        "$ref": "#/components/schemas/t/$defs/A",
        "$defs": {"A": {"$ref": "#/components/schemas/t"}},
    }


def test_the_document_is_of_the_user_who_asks() -> None:
    """Contract I8: a tool that a user may not see is not in it."""
    gate = Desk().gate
    assert "/tools/secret" in openapi(gate, MAX, "Bearer")["paths"]
    mine = openapi(gate, ANN, "Bearer")
    assert not [name for name in (*mine["paths"], *mine["components"]["schemas"]) if "secret" in name]


@pytest.mark.parametrize(
    ("challenge", "scheme"), [("Bearer", "bearer"), ('Basic realm="x"', "basic"), ("Negotiate", None), (None, None)]
)
async def test_the_document_says_how_to_say_who_asks(challenge: str | None, scheme: str | None) -> None:
    document = openapi(Desk().gate, ANN, challenge)
    schemes = document["components"].get("securitySchemes")
    assert schemes == (scheme and {"user": {"type": "http", "scheme": scheme}})
    async with (
        served(callgate.asgi(Desk().gate, authenticate=who, challenge=challenge)) as running,
        running.client(None) as nobody,
    ):
        said: httpx.Response = await nobody.get("/tools")
    assert (said.status_code, said.headers.get("www-authenticate")) == (401, challenge)


def test_a_gate_without_tools_has_a_document() -> None:
    assert set(openapi(callgate.Gate(), User("u"), None)["paths"]) == {
        "/health",
        "/health/ready",
        "/tools",
        "/openapi.json",
    }


def test_a_reference_to_an_anchor_leads_to_its_place() -> None:
    """Other tools of the document may have the same anchor."""
    schema = {
        "properties": {"x": {"$ref": "#p"}, "$anchor": {}},
        "$defs": {"a/b c": {"$anchor": "p", "type": "string"}},
    }
    assert embedded(schema, "t.arguments") == {
        "properties": {"x": {"$ref": "#/components/schemas/t.arguments/$defs/a~1b%20c"}, "$anchor": {}},
        "$defs": {"a/b c": {"type": "string"}},
    }


def test_every_reference_of_a_document_leads_to_a_schema() -> None:
    """Contract 11: also those of a discriminator, and to anchors under properties with names of keywords."""

    @tool(effect="read")
    def feed(
        pet: Annotated[Cat | Dog, Field(discriminator="kind")],
    ) -> Annotated[Cat | Dog, Field(discriminator="kind")]:
        """Feed a pet."""
        return pet

    named = {"default": {"$anchor": "a", "type": "string"}, "enum": {"$dynamicAnchor": "b"}, "const": {"$ref": "#a"}}
    schema = {"type": "object", "properties": {**named, "x": {"$dynamicRef": "#b"}}}
    anchored = tool(name="anchored", effect="read", parameters=schema)(lambda **_: None)
    document = openapi(callgate.Gate([feed, anchored]), User("u"), None)
    found = list(references(document))
    assert len(found) > 20
    assert any(one.endswith("feed.arguments/$defs/Cat") for one in found)
    assert any(one.endswith("anchored.arguments/properties/enum") for one in found)
    for one in found:
        target: Any = document
        for part in one.removeprefix("#/").split("/"):
            target = target[unquote(part).replace("~1", "/").replace("~0", "~")]


def references(node: Any) -> Iterator[str]:
    """The references of a document without such data, and those of its discriminators."""
    if isinstance(node, list):
        for item in node:
            yield from references(item)
    elif isinstance(node, dict):
        for key, item in node.items():
            if key == "$ref":
                yield item
            elif key == "mapping":
                yield from item.values()
            else:
                yield from references(item)


def test_every_operation_has_an_id_of_its_own() -> None:
    """Whatever the tools are named: a generator of clients would leave one of two out."""
    service = openapi(callgate.Gate(), User("u"), None)
    taken = [operation["operationId"] for path in service["paths"].values() for operation in path.values()]
    names = {part for id in taken for part in id.split(".")} | {"stream", "call"}
    tools = [tool(name=name, effect="read")(lambda: None) for name in names]
    document = openapi(callgate.Gate(tools), User("u"), None)
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids)) == len(taken) + 2 * len(names)
