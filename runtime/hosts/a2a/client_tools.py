"""Tools that a client offers with a message and runs itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from callgate.errors import DefinitionError
from callgate.runtime.gate import Gate
from callgate.tools.client.client import ClientToolProvider
from callgate.tools.record import ToolRecord

TAG = "client"
"""The tag of every client tool."""


def client_tools(definitions: Sequence[Mapping[str, Any]]) -> list[ToolRecord]:
    """Validate the tools of a client. A call of such a tool is suspended until the client answers.

    The tools have the tag ``client``, for policies. A client cannot set tags.

    Raises:
        DefinitionError: a definition is refused.
    """
    records = ClientToolProvider(list(definitions), None).tools()
    return [replace(record, definition=replace(record.definition, tags={TAG})) for record in records]


def refuse_duplicates(gate: Gate, records: Iterable[ToolRecord]) -> None:
    """Refuse client tools whose names the gate already has.

    Raises:
        DefinitionError: lists the names.
    """
    taken = [record.id for record in records if record.id in gate.registry]
    if taken:
        raise DefinitionError(f"Invalid client tool definitions: names that are taken: {', '.join(taken)}")
