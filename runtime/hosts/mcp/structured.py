"""``structuredContent``: the output of a tool that has an output schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from mcp_types import CallToolResult, TextContent

from callgate.runtime.hosts.mcp.listing import is_wrapped, structured_schema
from callgate.runtime.hosts.mcp.results import call_result
from callgate.tools.calls import ToolResult
from callgate.tools.record import ToolRecord
from callgate.tools.schemas.engines.base import Validator
from callgate.tools.schemas.validation import compile_schema

MISFIT = (
    "The call ended without an error. Its output does not match the output schema of the tool, so it is only text. "
    "Do not repeat the call to get another one."
)


class _Shape(NamedTuple):
    """The structure of a tool's results: the check of an output, and whether it is wrapped, by era."""

    validator: Validator
    wrapped: Mapping[bool, bool]


class Outputs:
    """Makes the results of a server's tools for its clients."""

    def __init__(self) -> None:
        self._shapes: WeakKeyDictionary[ToolRecord, _Shape | None] = WeakKeyDictionary()

    def result(self, result: ToolResult, record: ToolRecord | None, *, modern: bool) -> CallToolResult:
        """Return a result of the tool *record* for a client of the newest protocol version (*modern*), or of one before.

        A hook may set an output that its tool's schema does not allow, and a client refuses such a ``structuredContent``.
        The protocol exempts errors from the schema, so the result is then an error that has the output as text.
        """
        shape = self._shape(record) if record is not None and result.ok else None
        if shape is None:
            return call_result(result, structured=False)
        if _fits(shape.validator, result.output):
            return call_result(result, structured=True, wrapped=shape.wrapped[modern])
        shown = call_result(result, structured=False)
        return shown.model_copy(update={"content": [TextContent(text=MISFIT), *shown.content], "is_error": True})

    def _shape(self, record: ToolRecord) -> _Shape | None:
        """Return the structure, which is read from the schema once; None for a tool without one."""
        if record in self._shapes:
            return self._shapes[record]
        made, definition = None, record.definition
        if structured_schema(definition) is not None:
            validator = record.validators.get("output")
            if validator is None:
                schema, formats = record.schema_of("output"), record.formats_for(None)
                assert schema is not None  # it is structured
                validator = compile_schema(schema, trusted=record.trusted, formats=formats)
            made = _Shape(validator, {modern: is_wrapped(definition, modern=modern) for modern in (False, True)})
        self._shapes[record] = made
        return made


def _fits(validator: Validator, output: object) -> bool:
    try:
        validator.check(output)
    except Exception:  # noqa: BLE001  (an engine raises its own errors)
        return False
    return True
