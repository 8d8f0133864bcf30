"""The context of a recorded call: what the record does not hold, no policy can ask for."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from callgate.errors import Control
from callgate.hooks.builtin import FROZEN
from callgate.hooks.context import InvokeContext

_HIDDEN = object()


class Undecidable(Control):
    """A policy asks for what the record does not hold. No ``Exception``: no policy can take it for an answer."""


class _Masked(dict[str, Any]):
    """Recorded arguments, of which some values are masked: whoever reads those cannot be judged."""

    def __init__(self, values: Mapping[str, Any], hidden: Mapping[str, Any], tell: Any) -> None:
        super().__init__(
            {key: _watched(value, hidden[key], tell) if key in hidden else value for key, value in values.items()}
        )
        self._closed = {key for key, below in hidden.items() if not below}
        for key in self._closed:  # what reads a dict's insides, as encoders in C do, must not take the mask for a value
            self[key] = _HIDDEN
        self._tell = tell

    def _look(self, key: Any) -> None:
        if key in self._closed:
            self._tell(f"reads the masked argument {key!r}")

    def __iter__(self) -> Any:
        return super().__iter__()  # of its own, so that dict() and ** ask for each value

    def __getitem__(self, key: str) -> Any:
        self._look(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As a dict's, unless the value is masked."""
        self._look(key)
        return super().get(key, default)

    def _all(self) -> None:
        for key in sorted(self._closed):
            self._look(key)

    def values(self) -> Any:
        """As a dict's, unless a value is masked."""
        self._all()
        return super().values()

    def items(self) -> Any:
        """As a dict's, unless a value is masked."""
        self._all()
        return super().items()

    def pop(self, key: str, *default: Any) -> Any:
        """As a dict's, unless the value is masked."""
        self._look(key)
        return super().pop(key, *default)

    def copy(self) -> Any:
        """As a dict's, unless a value is masked."""
        self._all()
        return super().copy()

    def __eq__(self, other: object) -> bool:
        self._all()
        return super().__eq__(other)

    def __or__(self, other: Any) -> Any:
        self._all()
        return super().__or__(other)

    def __repr__(self) -> str:
        self._all()
        return super().__repr__()

    __hash__ = None


def _watched(value: Any, hidden: Any, tell: Any) -> Any:
    """A value below which something is masked: a watched object, or all of it masked where it is a list."""
    return _Masked(value, hidden, tell) if hidden and isinstance(value, dict) else value


def _tree(pointers: Iterable[str], values: Any) -> dict[str, Any]:
    """Pointers as nested keys; a list on the way is masked as a whole."""
    tree: dict[str, Any] = {}
    for one in pointers:
        node, at = tree, values
        parts = [part.replace("~1", "/").replace("~0", "~") for part in one.split("/")[1:]]
        for index, part in enumerate(parts):
            at = at.get(part) if isinstance(at, dict) else None
            if index == len(parts) - 1 or not isinstance(at, dict):
                node[part] = {}
                break
            node = node.setdefault(part, {})
    return tree


class ReplayContext(InvokeContext):
    """A context made of a record; what the record does not hold makes the verdict undecidable."""

    row: Mapping[str, Any]
    why: str | None = None
    run_id: str

    def tell(self, why: str) -> None:
        """Give up on this call."""
        if self.step.shadow:  # it decides nothing
            raise Undecidable
        if self.why is None:
            self.why = f"{self.step.name} at {self.step.stage} {why}"
        raise Undecidable

    @property
    def raw_input(self) -> Any:
        """Never recorded."""
        return self.tell("reads the raw arguments")

    @raw_input.setter
    def raw_input(self, value: Any) -> None:
        pass

    @property
    def input(self) -> Any:
        """The recorded arguments, once they are parsed."""
        if self._input_state != FROZEN:
            self.tell("reads arguments before they are parsed")
        shown = self.row["input"]
        if not isinstance(shown, dict):
            self.tell("reads arguments that are not recorded")
        return _Masked(shown, _tree(self.row["masked"], shown), self.tell)

    @input.setter
    def input(self, value: Any) -> None:
        self.tell("changes the arguments")

    @property
    def input_hash(self) -> str:
        """As recorded."""
        return str(self.row["input_hash"])

    @property
    def masked_input(self) -> Any:
        """As recorded."""
        return copy.deepcopy(self.row["input"])

    @masked_input.setter
    def masked_input(self, value: Any) -> None:
        pass

    @property
    def tool_call(self) -> Any:
        """The call's ids; its arguments are not recorded."""
        return _Call(self)

    @property
    def scope(self) -> Any:
        """A scope of its own: sessions of the gate are left alone."""
        if self._scope is None:
            session = None if self.session_id is None else f"{self.run_id} {self.session_id}"
            self._scope = self.host.registry.request(session, (self.user.tenant, self.user.id))
        return self._scope


class _Call:
    """What stands for the ``ToolCall`` of a recorded call."""

    synthetic_id = truncated = False
    chunk = None

    def __init__(self, ctx: ReplayContext) -> None:
        self._ctx = ctx
        self.id, self.tool = ctx.row["call_id"] or "recorded", ctx.row["tool"]

    @property
    def arguments(self) -> Any:
        """Never recorded."""
        return self._ctx.tell("reads the raw arguments")
