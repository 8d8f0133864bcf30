"""The hooks of a tool by stage, which a gate fixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence


class StageHooks(MutableMapping[object, Sequence[object]]):
    """``hooks_by_stage`` of a tool. Changes count from the next ``invoke_tool``, and are refused once a gate has the tool."""

    def __init__(self, given: Mapping[object, Sequence[object]]) -> None:
        self._given: dict[object, Sequence[object]] = dict(given)
        self._fixed = False

    def fix(self) -> None:
        """Refuse changes from now on: the gate has checked its policy with these hooks."""
        if not self._fixed:
            self._given = {stage: tuple(hooks) for stage, hooks in self._given.items()}
            self._fixed = True

    def __getitem__(self, stage: object) -> Sequence[object]:
        return self._given[stage]

    def __iter__(self) -> Iterator[object]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __setitem__(self, stage: object, hooks: Sequence[object]) -> None:
        self._changeable()[stage] = hooks

    def __delitem__(self, stage: object) -> None:
        del self._changeable()[stage]

    def _changeable(self) -> dict[object, Sequence[object]]:
        if self._fixed:
            raise TypeError(
                "the hooks of this tool are fixed: a gate has it, and would not check the change. Set hooks_by_stage "
                "before the gate opens, or write gate.exchange(add=[the new tool], replace=True)"
            )
        return self._given
