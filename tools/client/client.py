"""Tools that a client supplies and runs: checked here, carried out there, and never trusted (contract 24-43).

Nothing of a client's runs in this process: its tools are data, and its results are read as any other outside input.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypeAlias, TypedDict, cast

from callgate.errors import CallgateError, DefinitionError, Invalid, InvocationError, ToolError, UnknownTool
from callgate.tools.arguments.parse_errors import ParseError
from callgate.tools.arguments.parsing import parse_arguments
from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult
from callgate.tools.client.arguments import ArgumentCheck, argument_errors, as_tool_call
from callgate.tools.client.definitions import validate_tool_definitions, with_output_schema
from callgate.tools.definition import ToolDefinition
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.naming import did_you_mean
from callgate.tools.record import Style, ToolRecord
from callgate.tools.schemas.engines.base import Rejected, Validator, explain, guard_json
from callgate.tools.schemas.validation import OUTPUT_LIMITS, compile_schema
from callgate.tools.values import clip, dump, thaw

__all__ = ["ClientResult", "ClientToolProvider"]

MOST_TEXT = 1_024
"""Characters of what a client, or the callback that speaks for it, may say of a failure."""
_FAILED = "The client's tool failed."


class ClientResult(TypedDict):
    """How a client's tool ended, in the documents' shape (contract 36); ``error`` only where it did not succeed.

    ``validated`` is there, and False, where the arguments were sent to the client unchecked (C30).
    """

    toolCallId: str
    toolName: str
    success: bool
    result: Any
    error: NotRequired[str]
    validated: NotRequired[bool]


Answer: TypeAlias = ToolResult | ClientResult | Mapping[str, Any]
OnInputRequired: TypeAlias = Callable[[ToolCall, Any], Awaitable[Answer] | Answer]
"""Hands a call to the client and gives its answer: a ``ToolResult``, or a mapping as ``ClientResult`` is (contract 39)."""


@dataclass(frozen=True, slots=True)
class _Tool:
    definition: ToolDefinition
    arguments: Validator
    output: Validator | None


class ClientToolProvider:
    """The tools of one client (contract 24-37). Safe to share between tasks and threads.

    ``tools`` are its definitions, as it sent them: flat or wrapped, checked once, here (contract 32).
    ``on_input_required(call, context)`` hands a call to the client and waits for its answer; the call's arguments are
    parsed and checked, and a copy. What it raises is a failure of the tool, and the exception's text becomes the
    ``error`` of ``execute``: that text is the callback's to answer for. None is for a gate alone: the call is suspended
    until the client's answer is given to ``gate.resume``.
    ``validate_arguments=False`` hands calls over unchecked and marks their results (C30); a gate always checks.
    ``output_schemas``, by tool, are for results, in the place of what the client declares.
    ``limits`` bound arguments and results; by default ``Limits()``, or those of the gate that runs the tools.

    Raises:
        DefinitionError: ``Invalid client tool definitions: …``, or a schema for results that is no good.
    """

    def __init__(
        self,
        tools: Any,
        on_input_required: OnInputRequired | None,
        *,
        validate_arguments: bool = True,
        output_schemas: Mapping[str, Mapping[str, Any]] | None = None,
        limits: Limits | None = None,
    ) -> None:
        definitions = {definition.name: definition for definition in validate_tool_definitions(tools)}
        for name, schema in (output_schemas or {}).items():
            if name not in definitions:
                raise DefinitionError(f"output_schemas names {clip(str(name))!r}{did_you_mean(str(name), definitions)}")
            definitions[name] = with_output_schema(definitions[name], schema)
        self._tools = {name: _compiled(definition) for name, definition in definitions.items()}
        self._on_input_required = on_input_required
        self._validates = validate_arguments
        self._limits = limits

    def get_tools(self) -> list[ToolDefinition]:
        """The checked definitions, in the order they came in; the list is yours (contract 32)."""
        return [tool.definition for tool in self._tools.values()]

    def validate_tool_arguments(self, call: Any) -> ArgumentCheck:
        """Whether a call's arguments are valid, and everything that is wrong with them (contract 34, 35).

        ``call`` is a ``ToolCall`` or has OpenAI's shape. Nothing is handed to the client. ``errors`` are ordered:
        missing parameters, unknown ones, wrong types, then the rest with its place.
        """
        try:
            tool, arguments = self._parsed(as_tool_call(call))
        except Invalid as error:
            return {"valid": False, "errors": [error.public]}
        errors = _errors(tool, arguments)
        return {"valid": False, "errors": errors} if errors else {"valid": True}

    async def execute(self, call: Any, context: Any = None) -> ClientResult:
        """Have the client run a call: ``{toolCallId, toolName, success, result, error?}`` (contract 36).

        Never raises but for cancellation and what stops a process. ``context`` goes to the callback as it is.
        The result is JSON, within limits, valid under the output schema where there is one, and to be trusted no more
        than its client.
        """
        result = await self.call(call, context)
        shown = dict(result.to_success())
        if not self._validates:
            shown["validated"] = False
        return cast("ClientResult", shown)

    async def call(self, call: Any, context: Any = None) -> ToolResult:
        """``execute``, with a ``ToolResult``: code and outcome, and what was checked in ``provenance``."""
        asked = as_tool_call(call)
        checked = {"trusted": False, "validated": False, "output_validated": False}
        try:
            tool, arguments = self._parsed(asked)
            if self._validates:
                _require_valid(tool, arguments)
                checked["validated"] = True
        except Invalid as error:
            return _failure(asked, Outcome.INVALID, error, checked)
        try:
            answer = await self._ask(replace(asked, arguments=arguments, chunk=None), context)
            output = _plain(read_answer(answer, asked), self._limits or DEFAULT_LIMITS)
            if tool.output is not None:
                _require_valid_output(tool.output, output)
                checked["output_validated"] = True
        except Exception as error:  # noqa: BLE001  (contract 36: a failure is a result)
            return _failure(asked, Outcome.ERROR, error, checked)
        return ToolResult(asked.id, asked.tool, Outcome.SUCCESS, output, provenance=checked)

    def tools(self) -> list[ToolRecord]:
        """The same tools for a gate: ``Gate([*provider.tools()], hooks)``.

        A call then passes the whole pipeline, and a call that is refused never reaches the client. The callback gets the
        gate's context. A failure that the client tells becomes a ``ToolError`` with its text, cut; what the callback
        raises is handled as in any tool. Their effect is undeclared, whatever hints they carry.
        """
        return [self._record(tool) for tool in self._tools.values()]

    # ------------------------------------------------------------------ one call

    def _parsed(self, call: ToolCall) -> tuple[_Tool, dict[str, Any]]:
        """The tool of a call, and its arguments as an object (contract 34, 37).

        Raises:
            Invalid: there is no such tool, or no such object.
        """
        tool = self._tools.get(call.tool)
        if tool is None:
            told = f"Tool {clip(call.tool, 64) or '(no name)'} not found in client tools"
            raise UnknownTool(told, public=told)
        try:
            parsed = parse_arguments(
                call.arguments,
                limits=self._limits or DEFAULT_LIMITS,
                tolerant=tool.definition.tolerates,
                truncated=call.truncated,
            )
        except ParseError as error:
            raise Invalid(error.public, stage="parse", code="invalid_json", public=error.public) from None
        return tool, parsed.value

    async def _ask(self, call: ToolCall, context: Any) -> Answer:
        if self._on_input_required is None:
            raise ToolError("Nobody is there to hand the call to the client: on_input_required is None")
        answer = self._on_input_required(call, context)
        return await answer if inspect.isawaitable(answer) else answer

    def _record(self, tool: _Tool) -> ToolRecord:
        definition, waits = tool.definition, self._on_input_required is None

        async def body(arguments: dict[str, Any], ctx: Any) -> Any:
            if waits:
                prompt = f"The client is to run its tool {definition.name}."
                return _plain(ctx.suspend("client_tool", prompt, schema=thaw(definition.output_schema)))
            call = replace(ctx.tool_call, tool=definition.name, arguments=arguments, chunk=None)
            return _plain(read_answer(await self._ask(call, ctx), call))

        return ToolRecord(
            definition,
            body,
            Style.RECORD,
            hard_deadline=not waits,  # design 10.4: it can be left behind
            limits=self._limits,
            trusted=False,
            resumable=waits,
        )


def _compiled(definition: ToolDefinition) -> _Tool:
    schema, output = definition.parameters, definition.output_schema
    assert schema is not None
    made = None if output is None else compile_schema(output, trusted=False, limits=OUTPUT_LIMITS)
    return _Tool(definition, compile_schema(schema, trusted=False), made)


def _errors(tool: _Tool, arguments: dict[str, Any]) -> list[str]:
    return argument_errors(tool.definition.parameters or {}, tool.arguments, arguments)


def _require_valid(tool: _Tool, arguments: dict[str, Any]) -> None:
    if errors := _errors(tool, arguments):
        told = "; ".join(errors)
        raise Invalid(told, public=told)


# ---------------------------------------------------------------------- what comes back


def read_answer(answer: Any, call: ToolCall) -> Any:
    """The result in a client's answer (contract 39, 40; invariants B6).

    Raises:
        ToolError: the client says that its tool failed; with its text, cut.
        Invalid: it is no answer, or an answer to another call.
    """
    if isinstance(answer, ToolResult):
        answer = answer.to_success()
    if not isinstance(answer, Mapping) or not isinstance(answer.get("success"), bool):
        raise _bad_result('it is no {"toolCallId", "toolName", "success", "result"}')
    for key, expected in (("toolCallId", call.id), ("toolName", call.tool)):
        if answer.get(key, expected) != expected:
            raise _bad_result(f"its {key} is that of another call")
    if not answer["success"]:
        raise ToolError(_short(answer.get("error")) or _FAILED)
    return answer.get("result")


def _plain(value: Any, limits: Limits | None = None) -> Any:
    """A private copy of a result that is JSON; within *limits*, where they are not checked later (invariants B5).

    Raises:
        Invalid: it is not JSON, or beyond them.
    """
    most = sys.maxsize if limits is None else limits.max_output_bytes
    try:
        guard_json(value, depth=(limits or DEFAULT_LIMITS).max_depth, nodes=most, characters=most)
        if len(dump(value)) > most:
            raise _bad_result(f"it has over {most} bytes", "output_too_large")
    except Rejected as error:
        raise _bad_result(error.issue.expected) from None
    except (TypeError, ValueError):  # half a surrogate pair
        raise _bad_result("must be JSON") from None
    return thaw(value)


def _require_valid_output(validator: Validator, output: Any) -> None:
    try:
        validator.check(output)
    except Exception:  # noqa: BLE001  (whatever a validator raises is not a yes)
        raise _bad_result("; ".join(map(str, explain(validator, output)))) from None


def _bad_result(text: str, code: str = "invalid_output") -> Invalid:
    told = f"Invalid tool result: {text}"
    return Invalid(told, stage="output", code=code, public=told)


def _failure(call: ToolCall, outcome: Outcome, error: Exception, checked: dict[str, bool]) -> ToolResult:
    """An exception as a result. Callgate's own say what may be told; anybody else's is the callback's (contract 34)."""
    code = error.code if isinstance(error, InvocationError) else "tool_failed"
    told = error.public if isinstance(error, CallgateError) else _short(_message(error)) or _FAILED
    return ToolResult(call.id, call.tool, outcome, error=ErrorInfo(code, told), provenance=checked)


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (its own __str__ may fail)
        return ""


def _short(text: Any) -> str:
    """Text that can be sent on, cut; empty where it is no text."""
    if not isinstance(text, str):
        return ""
    kept = text[:MOST_TEXT].encode("utf-8", "replace").decode()
    return kept if len(text) <= MOST_TEXT else f"{kept}…"
