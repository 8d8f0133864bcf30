"""A gate with a client's own tools beside its own, for one task: the gate itself is not changed."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from callgate.errors import DefinitionError
from callgate.hooks.plan import Plan
from callgate.runtime.gate import Gate
from callgate.runtime.plans import Plans
from callgate.runtime.suspensions.suspensions import Suspensions
from callgate.tools.client.client import ClientToolProvider
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry

TAG = "client"
"""What every tool of a client is tagged with."""


def client_tools(definitions: Sequence[Mapping[str, Any]]) -> list[ToolRecord]:
    """The tools of a client, checked in full; a call of one waits until the client has answered.

    They have the tag ``client``, which a client cannot give, for policies to go by.

    Raises:
        DefinitionError: one is refused.
    """
    records = ClientToolProvider(list(definitions), None).tools()
    return [replace(record, definition=replace(record.definition, tags={TAG})) for record in records]


def refuse_taken(gate: Gate, records: Iterable[ToolRecord]) -> None:
    """Refuse tools that have the name of a tool of the gate (threat B2).

    Raises:
        DefinitionError: names them.
    """
    taken = [record.id for record in records if record.id in gate.registry]
    if taken:
        raise DefinitionError(f"Invalid client tool definitions: names that are taken: {', '.join(taken)}")


def extended(gate: Gate, records: Iterable[ToolRecord]) -> Gate:
    """The same gate, its hooks, stores and sessions, with these tools as well, but for those whose names are taken.

    What a tool of the gate calls in turn is looked up in the gate alone: no client's tool gets between.
    """
    records = [record for record in records if record.id not in gate.registry]
    made = copy.copy(gate)
    made.registry = ToolRegistry()
    for record in (*gate.registry.list(), *records):
        made.registry.add_inline(record)
    made._engine = copy.copy(gate._engine)
    made._plans = _Plans(made._engine, made.registry, gate._plans)
    made._shared, made._live = made._plans.shared, made._plans.live
    made._records = copy.copy(gate._records)
    made._records.plans = made._plans
    waits = gate.waits
    made._records.waits = Suspensions(waits._store, waits.keys, waits._now, made._plans.of, waits._policy_version)
    made._engine.waits = made._records.waits
    return made


class _Plans(Plans):
    """Plans of a client's tools, beside those of a gate."""

    def __init__(self, engine: Any, registry: ToolRegistry, own: Plans) -> None:
        super().__init__(engine, registry, deadline=own._deadline, lazy=True)
        self.shared = own.shared
        self._own = own

    def of(self, tool: Any, *, trace: bool = False) -> Plan:
        """See ``Plans``."""
        name = tool if isinstance(tool, str) else self._registry.id_of(tool)
        return self._own.of(name, trace=trace) if name in self._own._registry else super().of(name, trace=trace)
