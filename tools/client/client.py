"""Client tools: a client supplies and runs them; the server checks calls and results and trusts neither.

Nothing of a client runs in this process: its tools are data, and its results are read as any other outside input.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import replace
from typing import Any, NotRequired, Self, TypeAlias, TypedDict, cast

from callgate.errors import CallgateError, DefinitionError, Invalid, InvocationError, ToolError, UnknownTool
from callgate.providers.guesses import Explained, explain_camel_case
from callgate.tools.arguments.parse_errors import REFUSAL_CODES, ParseError
from callgate.tools.arguments.parsing import parse_arguments
from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult
from callgate.tools.client.arguments import ArgumentCheck, argument_errors, as_tool_call
from callgate.tools.client.definitions import ALLOWANCE, CheckedTool, check_client_tools, with_output_schema
from callgate.tools.client.schema import Members
from callgate.tools.definition import ToolDefinition
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.naming import did_you_mean
from callgate.tools.outputs import check_content, size_without_content
from callgate.tools.record import Style, ToolRecord
from callgate.tools.schemas.allowance import SchemaAllowance
from callgate.tools.schemas.engines.base import Rejected, Validator, explain, guard_json
from callgate.tools.values import clip, dump, thaw

MAX_TEXT = 1_024
"""Characters of an error text of a client or of its callback."""
_FAILED = "The client's tool failed."


class ClientResult(TypedDict):
    """The result of a client tool; ``error`` is present for a failure only.

    ``validated`` is present, and False, where the arguments were sent to the client unchecked.
    """

    toolCallId: str
    toolName: str
    success: bool
    result: Any
    error: NotRequired[str]
    validated: NotRequired[bool]


Answer: TypeAlias = ToolResult | ClientResult | Mapping[str, Any]
OnInputRequired: TypeAlias = Callable[[ToolCall, Any], Awaitable[Answer] | Answer]
"""A callback that sends a call to the client and returns its result: a ``ToolResult``, or a ``ClientResult`` mapping."""


class DefinitionList(list[ToolDefinition]):
    """A list that may be awaited, as the documents do: ``await provider.get_tools()`` is the list itself."""

    def __await__(self) -> Generator[object, object, Self]:
        yield from ()
        return self


@explain_camel_case
class ClientToolProvider(metaclass=Explained):
    """The tools of one client. Safe to share between tasks and threads.

    ``tools`` are its definitions as it sent them: flat or wrapped. They are checked once, here.
    ``on_input_required(call, context)`` sends a call to the client and waits for its result. It receives a copy of the
    call with parsed and checked arguments; ``call.to_function_call()`` is its form on the wire. An exception of it is a failure of the tool, and the exception's text becomes
    the ``error`` of ``execute``, so the callback is responsible for that text. None is for a gate alone: the call is
    suspended until the client's result is given to ``gate.resume``.
    ``validate_arguments=False`` sends calls unchecked and marks their results; a gate always checks.
    ``output_schemas``, by tool, validate results in place of the schemas that the client declares.
    ``limits`` apply to arguments and results; by default ``Limits()``, or those of the gate that runs the tools.
    ``allowance`` limits what all definitions cost together; it is checked before a schema is compiled.

    Raises:
        DefinitionError: ``Invalid client tool definitions: …``, or an invalid schema for results.
    """

    def __init__(
        self,
        tools: object,
        on_input_required: OnInputRequired | None,
        *,
        validate_arguments: bool = True,
        output_schemas: Mapping[str, Mapping[str, object]] | None = None,
        limits: Limits | None = None,
        allowance: SchemaAllowance = ALLOWANCE,
    ) -> None:
        checked = {tool.definition.name: tool for tool in check_client_tools(tools, allowance)}
        for name, schema in (output_schemas or {}).items():
            if name not in checked:
                raise DefinitionError(f"output_schemas names {clip(str(name))!r}{did_you_mean(str(name), checked)}")
            checked[name] = with_output_schema(checked[name], schema)
        self._tools = checked
        self._on_input_required = on_input_required
        self._validates = validate_arguments
        self._limits = limits

    def get_tools(self) -> DefinitionList:
        """The checked definitions, in the order of the client; the list is a copy, and may be awaited."""
        return DefinitionList(tool.definition for tool in self._tools.values())

    def validate_tool_arguments(self, call: object) -> ArgumentCheck:
        """Check a call's arguments and list all errors.

        ``call`` is a ``ToolCall`` or has OpenAI's shape. Nothing is sent to the client. ``errors`` are ordered:
        missing parameters, unknown ones, wrong types, then the rest with its pointer.
        """
        try:
            tool, arguments = self._parsed(as_tool_call(call))
        except Invalid as error:
            return cast("ArgumentCheck", Members({"valid": False, "errors": [error.public]}))
        errors = _errors(tool, arguments)
        return cast("ArgumentCheck", Members({"valid": False, "errors": errors} if errors else {"valid": True}))

    async def execute(self, call: object, context: object = None) -> ClientResult:
        """Let the client run a call; returns ``{toolCallId, toolName, success, result, error?}``.

        Raises only for a cancellation and for exceptions that stop a process. ``context`` goes to the callback unchanged.
        The result is JSON, within limits, and valid under the output schema where there is one. Trust it no more than its
        client.
        """
        result = await self.call(call, context)
        shown = dict(result.to_success())
        if not self._validates:
            shown["validated"] = False
        return cast("ClientResult", Members(shown))

    async def call(self, call: object, context: object = None) -> ToolResult:
        """Like ``execute``, but returns a ``ToolResult``: code and outcome, and ``provenance`` with the checks."""
        wanted = as_tool_call(call)
        checked = {"trusted": False, "validated": False, "output_validated": False}
        try:
            tool, arguments = self._parsed(wanted)
            if self._validates:
                _require_valid(tool, arguments)
                checked["validated"] = True
        except Invalid as error:
            return _failure(wanted, Outcome.INVALID, error, checked)
        try:
            answer = await self._send(replace(wanted, arguments=arguments, chunk=None), context)
            output = _plain(read_answer(answer, wanted), self._limits or DEFAULT_LIMITS)
            if (validator := tool.validators.get("output")) is not None:
                _require_valid_output(validator, output)
                checked["output_validated"] = True
        except Exception as error:  # noqa: BLE001  (a failure is a result)
            return _failure(wanted, Outcome.ERROR, error, checked)
        return ToolResult(wanted.id, wanted.name, Outcome.SUCCESS, output, provenance=checked)

    def tools(self) -> list[ToolRecord]:
        """Return the same tools for a gate: ``Gate([*provider.tools()], hooks)``.

        A call then passes the whole pipeline, and a refused call never reaches the client. The callback gets the gate's
        context. A failure that the client reports becomes a ``ToolError`` with its text, cut. An exception of the callback is
        handled as in any tool. The effect of the tools is undeclared, whatever hints they have.
        """
        return [self._record(tool) for tool in self._tools.values()]

    # ------------------------------------------------------------------ one call

    def _parsed(self, call: ToolCall) -> tuple[CheckedTool, dict[str, object]]:
        """Return the tool of a call, and its arguments as an object.

        Raises:
            Invalid: the tool is unknown, or the arguments are not an object.
        """
        tool = self._tools.get(call.name)
        if tool is None:
            public = f"Tool {clip(call.name, 64) or '(no name)'} not found in client tools"
            raise UnknownTool(public, public=public)
        try:
            parsed = parse_arguments(
                call.arguments,
                limits=self._limits or DEFAULT_LIMITS,
                tolerant=tool.definition.tolerates,
                truncated=call.truncated,
                takes_nothing=tool.definition.takes_nothing,
                exact=not tool.definition.tolerates,
            )
        except ParseError as error:
            code = REFUSAL_CODES[error.stage]
            raise Invalid(error.public, stage=error.stage, code=code, public=error.public) from None
        return tool, parsed.value

    async def _send(self, call: ToolCall, context: object) -> Answer:
        if self._on_input_required is None:
            raise ToolError("The call cannot be sent to the client: on_input_required is None; give a callback")
        answer = self._on_input_required(call, context)
        return await answer if inspect.isawaitable(answer) else answer

    def _record(self, tool: CheckedTool) -> ToolRecord:
        definition, suspends = tool.definition, self._on_input_required is None

        async def body(arguments: dict[str, object], ctx: Any) -> object:
            if suspends:
                prompt = f"The client is to run its tool {definition.name}."
                return _plain(ctx.suspend("client_tool", prompt, schema=thaw(definition.output_schema)))
            call = replace(ctx.tool_call, name=definition.name, arguments=arguments, chunk=None)
            return _plain(read_answer(await self._send(call, ctx), call))

        record = ToolRecord(
            definition,
            body,
            Style.RECORD,
            hard_deadline=not suspends,  # a hard deadline can abandon it
            limits=self._limits,
            trusted=False,
            formats="assert",  # the form of client tools counts it among the keywords that restrict
            resumable=suspends,
        )
        record.validators.update(tool.validators)
        return record


def _errors(tool: CheckedTool, arguments: Mapping[str, object]) -> list[str]:
    return argument_errors(tool.definition.parameters or {}, tool.validators["parameters"], arguments)


def _require_valid(tool: CheckedTool, arguments: Mapping[str, object]) -> None:
    if errors := _errors(tool, arguments):
        public = "; ".join(errors)
        raise Invalid(public, public=public)


# ---------------------------------------------------------------------- results


def read_answer(answer: object, call: ToolCall) -> object:
    """Read the result of a client.

    Raises:
        ToolError: the client reports a failure of its tool; with its text, cut.
        Invalid: the result has another shape, or belongs to another call.
    """
    if isinstance(answer, ToolResult):
        answer = answer.to_success()
    if not isinstance(answer, Mapping) or not isinstance(answer.get("success"), bool):
        raise _bad_result('it is not of the form {"toolCallId", "toolName", "success", "result"}')
    for key, expected in (("toolCallId", call.id), ("toolName", call.name)):
        if answer.get(key, expected) != expected:
            raise _bad_result(f"its {key} is that of another call")
    if not answer["success"]:
        raise ToolError(_short(answer.get("error")) or _FAILED)
    return answer.get("result")


def _plain(value: object, limits: Limits | None = None) -> object:
    """Copy a result that is JSON; within *limits*, where no later check applies them.

    Raises:
        Invalid: the result is not JSON, or exceeds the limits.
    """
    maximum = sys.maxsize if limits is None else limits.max_output_bytes
    characters = maximum if limits is None else maximum + 2 * limits.max_content_bytes  # more than its base64
    try:
        guard_json(value, depth=(limits or DEFAULT_LIMITS).max_depth, nodes=maximum, characters=characters)
        size, largest, total = size_without_content(value, dump(value))
        if size > maximum:
            raise _bad_result(f"it has over {maximum} bytes", "output_too_large")
        if limits is not None:
            check_content(largest, total, limits)
    except Rejected as error:
        raise _bad_result(error.issue.expected) from None
    except (TypeError, ValueError):  # a lone surrogate
        raise _bad_result("must be JSON") from None
    return thaw(value)


def _require_valid_output(validator: Validator, output: object) -> None:
    try:
        validator.check(output)
    except Exception:  # noqa: BLE001  (any exception of a validator means invalid)
        raise _bad_result("; ".join(map(str, explain(validator, output)))) from None


def _bad_result(text: str, code: str = "invalid_output") -> Invalid:
    public = f"Invalid tool result: {text}"
    return Invalid(public, stage="output", code=code, public=public)


def _failure(call: ToolCall, outcome: Outcome, error: Exception, checked: dict[str, bool]) -> ToolResult:
    """Convert an exception to a result. Errors of Callgate have public text; others belong to the callback."""
    code = error.code if isinstance(error, InvocationError) else "tool_failed"
    public = error.public if isinstance(error, CallgateError) else _short(_message(error)) or _FAILED
    return ToolResult(call.id, call.name, outcome, error=ErrorInfo(code, public), provenance=checked)


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (its own __str__ may fail)
        return ""


def _short(text: object) -> str:
    """Text that can be encoded, cut; empty for other values."""
    if not isinstance(text, str):
        return ""
    cut = text[:MAX_TEXT].encode("utf-8", "replace").decode()
    return cut if len(text) <= MAX_TEXT else f"{cut}…"
