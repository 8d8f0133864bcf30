"""The server that the official conformance suite tests: a gate with the tools that its scenarios name.

``make test-mcp`` runs it: ``python -m tests.runtime.hosts.mcp.conformance PORT``.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import zip_longest
from typing import Any

import uvicorn

import callgate.mcp
from callgate import Gate, Question, ToolContext, ToolError, User, tool
from callgate.hooks import Authorize, permit
from callgate.mcp import Resumption
from callgate.runtime.hosts.mcp.face import ServedGate
from tests.harness.gate_options import gate_options

CLOSE_AFTER = 0.5
FIRST = {"mcp_asks_first": True}
TEXT = {"type": "string"}
CONFIRM = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
NAME = {"type": "object", "properties": {"name": TEXT}, "required": ["name"]}
PERSON = {"type": "object", "properties": {"username": TEXT, "email": TEXT}}
DEFAULTS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
}
TITLED = [{"const": f"value{n}", "title": f"{word} Option"} for n, word in ((1, "First"), (2, "Second"), (3, "Third"))]
PLAIN = ["option1", "option2", "option3"]
ENUMS = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": PLAIN},
        "titledSingle": {"type": "string", "oneOf": TITLED},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": PLAIN}},
        "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
    },
}
NESTED = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": TEXT, "city": TEXT}}},
    "properties": {
        "name": TEXT,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": TEXT,
        "email": TEXT,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
HEADERS = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
    },
    "additionalProperties": False,
}


def simple_tools(gate: list[Gate]) -> list[Any]:
    """Tools that answer at once."""

    @tool(effect="read")
    async def test_simple_text() -> str:
        """Return a text."""
        return "This is a simple text response for testing."

    @tool(effect="read")
    async def test_error_handling() -> str:
        """Fail."""
        raise ToolError("This tool intentionally returns an error for testing")

    @tool(effect="read")
    async def test_tool_with_progress(*, ctx: ToolContext) -> str:
        """Report progress."""
        for step in (0, 50, 100):
            ctx.progress(step, 100, f"Completed step {step} of 100")
            await asyncio.sleep(0.05)
        return "done"

    @tool(effect="read")
    async def test_reconnection() -> str:
        """Take longer than the server leaves the stream of a call open."""
        await asyncio.sleep(2 * CLOSE_AFTER)
        return "reconnected"

    @tool(effect="read", parameters=HEADERS)
    async def test_x_mcp_header(region: str = "", count: int = 0) -> str:
        """Take arguments that HTTP headers repeat."""
        return f"{region} {count}"

    @tool(effect="read", metadata={"mcp_requires": ["sampling"]})
    async def test_missing_capability() -> str:
        """Need a client that samples."""
        return "sampled"

    @tool(effect="read")
    async def test_logging_tool() -> str:
        """Log nothing to the client."""
        return "logged"

    @tool(effect="read")
    async def extra() -> str:
        """Come and go."""
        return "extra"

    @tool(effect="read")
    async def test_trigger_tool_change() -> str:
        """Change the list of tools."""
        if "extra" in gate[0].registry:
            gate[0].remove("extra")
        else:
            gate[0].add(extra)
        return "changed"

    @tool(name="json_schema_2020_12_tool", effect="read", parameters=NESTED)
    async def nested(
        name: str = "",
        address: dict[str, str] | None = None,
        contactMethod: str = "",  # noqa: N803  (the suite's name)
        phone: str = "",
        email: str = "",
    ) -> str:
        """Tool with JSON Schema 2020-12 features."""
        return f"nested {name} {address} {contactMethod} {phone} {email}"

    return [
        test_simple_text,
        test_error_handling,
        test_tool_with_progress,
        test_reconnection,
        test_x_mcp_header,
        test_missing_capability,
        test_logging_tool,
        test_trigger_tool_change,
        nested,
    ]


def content(name: str, *blocks: dict[str, Any]) -> Any:
    """A tool that returns content blocks."""

    @tool(name=name, effect="read", output_schema=False)
    async def returns() -> list[dict[str, Any]]:
        """Return content blocks."""
        return list(blocks)

    return returns


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}


def resource(uri: str, kind: str, text: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": text}}


def content_tools() -> list[Any]:
    """Tools that return images, audio and resources."""
    embedded = resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    mixed = resource("test://mixed-content-resource", "application/json", '{"test": "data", "value": 123}')
    return [
        content("test_image_content", IMAGE),
        content("test_audio_content", {"type": "audio", "data": WAV, "mimeType": "audio/wav"}),
        content("test_embedded_resource", embedded),
        content("test_multiple_content_types", {"type": "text", "text": "Multiple content types test:"}, IMAGE, mixed),
    ]


def asking(name: str, *questions: tuple[str, dict[str, Any]], names: tuple[str, ...] = (), **options: Any) -> Any:
    """A tool that asks *questions*, one after another, and returns the answers."""

    @tool(name=name, effect="read", resumable=True, **options)
    async def asks(message: str = "", filename: str = "", *, ctx: ToolContext) -> str:
        """Ask, and return the answers."""
        del filename
        return " ".join(
            [
                str(ctx.suspend("input", text or message, schema=schema, name=named))
                for (text, schema), named in zip_longest(questions, names)
            ]
        )

    return asks


def asking_tools() -> list[Any]:
    """Tools that ask their user."""
    prefix = "test_input_required_result_"
    return [
        asking("test_elicitation", ("", PERSON)),
        asking("test_streaming_elicitation", ("Who?", PERSON)),
        asking("test_elicitation_sep1034_defaults", ("Defaults", DEFAULTS)),
        asking("test_elicitation_sep1330_enums", ("Choices", ENUMS)),
        asking(f"{prefix}elicitation", ("What is your name?", NAME), names=("user_name",)),
        asking(f"{prefix}request_state", ("Please confirm: state-ok", CONFIRM)),
        asking(f"{prefix}multi_round", ("Step 1: What is your name?", NAME), ("Step 2: Which colour?", CONFIRM)),
        asking(f"{prefix}tampered_state", ("Please confirm", CONFIRM)),
        asking(f"{prefix}validation", ("What is your name?", NAME)),
        asking(f"{prefix}capabilities", ("What is your name?", NAME)),
    ]


def task_tools() -> list[Any]:
    """Tools that run in workers."""

    @tool(effect="read")
    async def greet(name: str) -> str:
        """Greet."""
        return f"Hello, {name}!"

    @tool(effect="read", run_on="worker")
    async def slow_compute(seconds: float = 0, label: str = "") -> str:
        """Take some time."""
        await asyncio.sleep(seconds)
        return f"done {label}"

    @tool(effect="read", run_on="worker", metadata={"mcp_requires": ["tasks"]})
    async def failing_job() -> str:
        """Fail."""
        raise ToolError("it failed")

    @tool(effect="read", run_on="worker")
    async def protocol_error_job() -> str:
        """Break."""
        raise RuntimeError("broken")

    @tool(effect="read", run_on="worker", resumable=True)
    async def multi_input(*, ctx: ToolContext) -> str:
        """Ask two questions at once."""
        questions = {"first": Question("First?", NAME), "second": Question("Second?", NAME)}
        return str(ctx.suspend("input", "", questions=questions))

    return [
        greet,
        slow_compute,
        failing_job,
        protocol_error_job,
        asking("confirm_delete", ("Delete it?", CONFIRM), run_on="worker"),
        asking("test_tool_with_task", ("Name?", NAME), names=("user_name",), run_on="worker", metadata=FIRST),
        multi_input,
    ]


def conformance_server() -> ServedGate:
    """The server of the suite."""
    made: list[Gate] = []
    gate = Gate(
        [*simple_tools(made), *content_tools(), *asking_tools(), *task_tools()],
        [Authorize(permit("everybody"))],
        **gate_options(signing_keys=["k" * 32], durable=False, store="memory://"),
    )
    made.append(gate)
    resumption = Resumption(close_after=CLOSE_AFTER, retry=0.1)
    return callgate.mcp.server(gate, name="conformance", user=User("ann"), resumption=resumption)


if __name__ == "__main__":
    uvicorn.run(conformance_server().asgi(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
