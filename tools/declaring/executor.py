"""Executors: tools that are objects with a schema and an ``execute`` method."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from callgate.errors import DefinitionError, ToolError
from callgate.tools.calls import ToolResult
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import Style, ToolRecord, as_declared, check_execute
from callgate.tools.values import thaw

_RESULT_KEYS = frozenset({"status", "output", "error", "metadata", "callId", "toolName"})


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """The schema of a tool for a planner, with JSON Schemas of its input and output.

    ``examples`` are objects such as ``{"input": {...}, "output": {...}}``.
    """

    name: str
    description: str | None
    input_schema: Mapping[str, object] | None
    output_schema: Mapping[str, object] | None = None
    examples: Sequence[object] = ()

    @classmethod
    def of(cls, value: object) -> Self:
        """Read a mapping or an object with these members, under these names or as ``inputSchema``, ``outputSchema``.

        Raises:
            DefinitionError: there is no name.
        """

        def read(*names: str) -> Any:
            found = (value.get(name) if isinstance(value, Mapping) else getattr(value, name, None) for name in names)
            return next((item for item in found if item is not None), None)

        if isinstance(value, cls):
            return value
        name = read("name")
        if name is None:
            raise DefinitionError("an executor's schema has a name, a description and an inputSchema; it has no name")
        return cls(
            name=name,
            description=read("description"),
            input_schema=read("input_schema", "inputSchema"),
            output_schema=read("output_schema", "outputSchema"),
            examples=read("examples") or (),
        )

    @classmethod
    def from_definition(cls, definition: ToolDefinition) -> Self:
        """Copy the part of a definition that a planner receives."""
        return cls(
            name=definition.name,
            description=definition.description,
            input_schema=thaw(definition.parameters),
            output_schema=thaw(definition.output_schema),
            examples=thaw(definition.examples),
        )

    def to_definition(self, **options: Any) -> ToolDefinition:
        """Make a definition with this schema; ``options`` are further fields of ``ToolDefinition``, such as ``effect``.

        Raises:
            DefinitionError: a rule is broken.
        """
        return ToolDefinition(
            name=self.name,
            description=self.description,
            parameters=self.input_schema,
            output_schema=self.output_schema,
            examples=self.examples,
            **options,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, in camel case, with the members that are set."""
        shown = {
            "name": self.name,
            "description": self.description,
            "inputSchema": thaw(self.input_schema),
            "outputSchema": thaw(self.output_schema),
            "examples": thaw(list(self.examples)) or None,
        }
        return {key: value for key, value in shown.items() if value is not None}


class ToolExecutor(Protocol):
    """The protocol of an executor, which ``as_tool`` and a registry accept beside functions and classes.

    ``execute`` may be async or plain. It returns the output, raises, or returns ``ToolResult(status="success",
    output=...)``, ``ToolResult(status="error", error=text)`` or a mapping ``{"status": "success", "output": ...}`` or ``{"status": "error", "error": text}``; that text reaches the model.
    An executor that also has a ``definition`` (a ``ToolDefinition``) is registered under it.
    """

    @property
    def schema(self) -> ToolSchema:
        """Name, description and schemas."""
        ...

    def execute(self, input: Any, context: Any, /) -> Any:
        """Do the work with the validated arguments and the ``ToolContext``."""
        ...


def is_executor(item: object) -> bool:
    """Check for an instance with a ``schema`` and an ``execute`` method."""
    return hasattr(item, "schema") and callable(getattr(item, "execute", None))


def executor_record(executor: ToolExecutor) -> ToolRecord:
    """Make the record of an executor.

    Raises:
        DefinitionError: its schema breaks a rule, or ``execute`` does not take the input and the context.
    """
    definition = getattr(executor, "definition", None)
    if not isinstance(definition, ToolDefinition):
        definition = ToolSchema.of(executor.schema).to_definition()
    run = executor.execute
    check_execute(run, f"{type(executor).__qualname__}.execute")

    async def execute_async(arguments: object, context: object) -> object:
        return _output(await run(arguments, context))

    def execute(arguments: object, context: object) -> object:
        return _output(run(arguments, context))

    is_async = inspect.iscoroutinefunction(run)
    body = execute_async if is_async else execute
    return as_declared(ToolRecord(definition=definition, execute=body, style=Style.RECORD, is_async=is_async))


def output_of(result: ToolResult) -> object:
    """Return the output of a result that a tool has returned.

    Raises:
        ToolError: the result is an error; its text reaches the model.
    """
    if result.ok:
        return result.output
    raise ToolError(result.error.public if result.error else ToolError.default_public)


def _output(result: object) -> object:
    """The output in a result, or the value itself where it is not a result."""
    if isinstance(result, ToolResult):
        return output_of(result)
    if isinstance(result, Mapping) and "status" in result and result.keys() <= _RESULT_KEYS:
        if result["status"] == "success":
            return result.get("output")
        if result["status"] == "error":
            raise ToolError(str(result.get("error") or ToolError.default_public))
    return result
