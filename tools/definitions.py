"""``Definitions``: the definitions of many tools, read from their records when they are needed."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping, Sequence
from typing import overload

from callgate.tools.definition import ToolDefinition
from callgate.tools.record import ToolRecord


class Definitions(Sequence[ToolDefinition]):
    """The definitions of the tools of a gate, in the order of registration.

    Making one visits no tool, so a hook that only compares ``names`` costs a gate with many tools nothing at a change.
    """

    def __init__(self, records: Mapping[str, ToolRecord]) -> None:
        self._records = records

    @property
    def names(self) -> KeysView[str]:
        """The names of the tools."""
        return self._records.keys()

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[ToolDefinition]:
        return (record.definition for record in self._records.values())

    @overload
    def __getitem__(self, index: int) -> ToolDefinition: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ToolDefinition]: ...
    def __getitem__(self, index: int | slice) -> ToolDefinition | Sequence[ToolDefinition]:
        return tuple(self)[index]
