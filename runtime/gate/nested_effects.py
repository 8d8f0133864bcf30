"""The linter's rule about ``read`` tools that call tools with an effect. ``read`` allows to cache and to retry them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from callgate.errors import CallgateError
from callgate.hooks.linter import Finding
from callgate.tools.definition import Effect
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry


def reads_with_effects(registry: ToolRegistry, seen: Mapping[str, set[str]]) -> list[Finding]:
    """Return a finding for each ``read`` tool that calls an effect: this process has *seen* it, or its source shows it."""
    records = {record.id: record for record in registry.list()}
    reads = [record for record in records.values() if record.definition.effect is Effect.READ]
    if len(reads) == len(records):  # no source is parsed where there is no effect to call
        return []
    written = {record.id: set(_called_by(record, registry)) for record in reads}
    return [
        Finding(
            "read_calls_effect",
            record.id,
            "tool",
            f"declares the effect read and calls {', '.join(called)}; declare the strongest effect of what it calls",
        )
        for record in reads
        if (called := sorted(seen.get(record.id, set()) | set(_effects_behind(record.id, written, records))))
    ]


def _effects_behind(tool: str, written: Mapping[str, set[str]], records: Mapping[str, ToolRecord]) -> Iterator[str]:
    """Yield the effects that a tool reaches by its source, through other ``read`` tools, too."""
    left, known = [tool], {tool}
    while left:
        for name in sorted(written[left.pop()] - known):
            known.add(name)
            if records[name].definition.effect is Effect.READ:
                left.append(name)
            else:
                yield name


def _called_by(record: ToolRecord, registry: ToolRegistry) -> Iterator[str]:
    """Yield the tools that a body calls as ``….call(tool, …)`` or ``….invoke(tool, …)``, by name or by object."""
    body: Any = record.execute if record.component is None else getattr(record.component, "run", None)
    try:
        function = inspect.unwrap(body)
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        names = inspect.getclosurevars(function)
    except (TypeError, OSError, SyntaxError, ValueError):  # no Python function, or its source is not there
        return
    known = {**names.globals, **names.nonlocals}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            called = _tool_of(node.args[0], known, registry) if node.func.attr in {"call", "invoke"} else None
            if called is not None:
                yield called


def _tool_of(node: ast.expr, known: Mapping[str, object], registry: ToolRegistry) -> str | None:
    """Return the tool that an expression names: a literal, or a variable of the module or an outer function."""
    named = node.value if isinstance(node, ast.Constant) else known.get(node.id) if isinstance(node, ast.Name) else None
    if isinstance(named, str):
        return named if named in registry else None
    try:
        return None if named is None else registry.id_of(named)
    except (TypeError, CallgateError):
        return None
