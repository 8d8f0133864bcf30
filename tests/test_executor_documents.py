"""The executor of the document on the ART tool system, line by line, and results that a tool returns itself."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest

from callgate import Effects, ErrorInfo, Gate, Outcome, ToolRecord, ToolRegistry, ToolResult, invoke_tool, tool
from callgate.errors import ToolError
from callgate.threads import ExecutionContext, InMemoryObservations, InMemoryState, ToolSystem
from callgate.tools import ToolSchema

SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}


def evaluate(expression: str) -> float:
    return float(eval(expression, {"__builtins__": {}}, {"sqrt": math.sqrt}))


class CalculatorTool:
    """The sample; ``implements IToolExecutor`` needs no base class."""

    schema: ClassVar = ToolSchema(
        name="CalculatorTool",
        description="Calculates the result of a mathematical expression.",
        input_schema=SCHEMA,
        examples=[{"input": {"expression": "sqrt(16) + 2**3"}, "output": {"result": 12}}],
    )

    async def execute(self, input: Any, context: ExecutionContext) -> ToolResult:
        try:
            result = evaluate(input["expression"])
            if not math.isfinite(result):
                raise ValueError("Evaluation resulted in a non-finite number or unsupported type.")
            return ToolResult(status="success", output={"result": result})
        except Exception as error:  # noqa: BLE001
            return ToolResult(status="error", error=f"Calculation failed: {error}")


class PlainCalculator(CalculatorTool):
    """The same with a plain ``execute`` and a mapping as its result."""

    def execute(self, input: Any, context: Any) -> Any:
        try:
            return {"status": "success", "output": {"result": evaluate(input["expression"])}}
        except Exception as error:  # noqa: BLE001
            return {"status": "error", "error": f"Calculation failed: {error}"}


@pytest.mark.parametrize("kind", [CalculatorTool, PlainCalculator])
async def test_the_executor_of_the_document_runs_and_its_errors_reach_the_model(kind: Any) -> None:
    """ "Captures the outcome in a standardized ToolResult, including the original callId, toolName, status"."""
    observations = InMemoryObservations()
    system = ToolSystem(ToolRegistry([kind()]), InMemoryState({"t": ["CalculatorTool"]}), observations)
    plan = [
        {"callId": "c1", "toolName": "CalculatorTool", "arguments": {"expression": "sqrt(16) + 2**3"}},
        {"callId": "c2", "toolName": "CalculatorTool", "arguments": {"expression": "1 / 0"}},
        {"callId": "c3", "toolName": "CalculatorTool", "arguments": {}},
    ]
    found = [one.to_status() for one in await system.execute_tools(plan, "t", "trace")]
    assert [(one["callId"], one["toolName"], one["status"]) for one in found] == [
        ("c1", "CalculatorTool", "success"),
        ("c2", "CalculatorTool", "error"),
        ("c3", "CalculatorTool", "error"),
    ]
    assert found[0]["output"] == {"result": 12.0}
    assert found[1]["error"].startswith("Calculation failed: ")
    assert all(one["metadata"]["duration"] >= 0 for one in found)
    await system.close()


# ------------------------------------------------------------------ every style of tool


def in_record(result: Any) -> Any:
    return ToolRecord(id="t", description="T.", input_schema={"type": "object", "properties": {}}, effect="read",
                      execute=lambda input, ctx: result)  # fmt: skip


def in_function(result: Any) -> Any:
    @tool(name="t", effect="read")
    async def body() -> Any:
        """T."""
        return result

    return body


def in_class(result: Any) -> Any:
    @tool({"name": "t", "description": "T.", "effect": "read", "parameters": {"type": "object", "properties": {}}})
    class Body:
        async def run(self) -> Any:
            return result

    return Body


def in_executor(result: Any) -> Any:
    class Body:
        schema: ClassVar = {"name": "t", "description": "T.", "inputSchema": {"type": "object", "properties": {}}}

        async def execute(self, input: Any, ctx: Any) -> Any:
            return result

    return Body()


STYLES = [in_record, in_function, in_class, in_executor]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("form", ["status", "outcome"])
async def test_a_result_that_a_tool_returns_is_its_result_and_never_an_output(style: Any, form: str) -> None:
    """Else the model would read an error as the output of a call that succeeded."""
    good = ToolResult(status="success", output={"x": 1})
    bad = ToolResult(status="error", error="No such city.")
    if form == "outcome":
        good = ToolResult("c", "t", Outcome.SUCCESS, {"x": 1})
        bad = ToolResult("c", "t", Outcome.DENIED, error=ErrorInfo("denied", "No such city."))
    assert await invoke_tool(style(good), {}) == {"x": 1}
    with pytest.raises(ToolError, match="No such city"):
        await invoke_tool(style(bad), {})
    async with Gate([style(bad)], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        result = await gate.call("t", {})
    assert (result.ok, result.error and result.error.public) == (False, "No such city.")


@pytest.mark.parametrize("given", [{}, {"status": "done"}, {"status": "success", "error": "x"}, {"output": 1}])
def test_a_result_without_a_status_is_answered_with_the_line_to_write(given: Any) -> None:
    with pytest.raises(TypeError, match=r'write ToolResult\(status="success", output=\.\.\.\)'):
        ToolResult(**given)


def test_the_names_of_the_document_are_read() -> None:
    made = ToolResult(tool_name="t", status="success", output=1, metadata={"duration": 3})
    assert (made.tool, made.tool_name, made.status, made.output) == ("t", "t", "success", 1)
