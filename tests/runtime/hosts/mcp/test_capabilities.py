"""What a tool needs of its client, and the forms that a client can show."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types
from mcp import MCPError

from callgate import Gate, tool
from callgate.hooks import Authorize, permit
from callgate.hooks.state.facts import Suspension
from callgate.runtime.hosts.mcp.questions import KEY, elicitations_of
from tests.harness.gate_options import gate_options
from tests.runtime.hosts.mcp.world import ERAS, PEOPLE, client_of, server_of

TITLED = [{"const": "a", "title": "First"}, {"const": "b", "title": "Second"}]


def needing(*needs: str, roles: tuple[str, ...] | None = None) -> Any:
    @tool(name="careful", effect="read", metadata={"mcp_requires": list(needs)}, allowed_roles=roles)
    async def careful() -> int:
        """Need something of the client."""
        return 1

    return careful


def accept(_: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={})


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("needs", "offers", "missing"),
    [
        ((), False, None),
        (("elicitation",), True, None),
        (("elicitation",), False, {"elicitation": {}}),
        (("elicitation", "sampling"), True, {"sampling": {}}),
        (("tasks",), True, {"extensions": {"io.modelcontextprotocol/tasks": {}}}),
        (("nonsense",), True, {"nonsense": {}}),
    ],
    ids=str,
)
async def test_a_tool_refuses_a_client_without_what_it_needs(
    era: str, needs: tuple[str, ...], offers: bool, missing: dict[str, Any] | None
) -> None:
    gate = Gate([needing(*needs)], [Authorize(permit("everybody"))], **gate_options(durable=False))
    answers = accept if offers else None
    async with client_of(server_of(gate, "memory"), "memory", era, answers=answers) as client:
        if missing is None:
            assert (await client.call_tool("careful", {})).structured_content == (
                {"result": 1} if era != "modern" else 1
            )
            return
        with pytest.raises(MCPError) as caught:
            await client.call_tool("careful", {})
        assert caught.value.error.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY
        assert caught.value.error.data == {"requiredCapabilities": missing}


async def test_what_a_hidden_tool_needs_stays_hidden() -> None:
    gate = Gate([needing("sampling", roles=("lead",))], [Authorize(permit("everybody"))], **gate_options(durable=False))
    async with client_of(server_of(gate, "memory"), "memory", "modern") as client:
        said = []
        for name in ("careful", "nosuch"):
            with pytest.raises(MCPError) as caught:
                await client.call_tool(name, {})
            said.append((caught.value.error.code, caught.value.error.message.replace(name, "NAME")))
        assert said[0] == said[1]


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ({"type": "string", "enum": ["a", "b"]}, True),
        ({"type": "string", "oneOf": TITLED}, True),
        ({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}, True),
        ({"type": "array", "items": {"anyOf": TITLED}}, True),
        ({"type": "array", "items": {"type": "string"}}, False),
        ({"type": "object", "properties": {}}, False),
    ],
    ids=str,
)
def test_a_form_shows_what_clients_have_fields_for(field: dict[str, Any], shown: bool) -> None:
    """A form keeps the choices of a field; without a field for it, the question is for a page elsewhere."""
    schema = {"type": "object", "properties": {"choice": field}}
    question = elicitations_of(Suspension("input", "Which?", schema, handle="h"), "", PEOPLE["ann"], None)
    assert (question is not None) is shown
    if question is not None:
        params = question.forms[KEY].request().params
        assert isinstance(params, types.ElicitRequestFormParams)
        assert params.requested_schema["properties"]["choice"] == field
