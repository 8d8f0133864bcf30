"""The context of a recorded call: a policy that reads unrecorded data makes the verdict undecidable."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from callgate.errors import Control
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import FROZEN
from callgate.hooks.state.host import CallPlan
from callgate.hooks.state.run import Run
from callgate.providers.scope import ProviderScope
from callgate.tools.calls import User

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_values


_HIDDEN = object()


class Undecidable(Control):
    """A policy reads unrecorded data. It does not derive from ``Exception``, so that no policy catches it."""


Refuse: TypeAlias = Callable[[str], NoReturn]
"""Ends the replay of a call as undecidable, for a reason."""


class _Masked(dict[str, object]):
    """Recorded arguments with masked values: a policy that reads a masked value makes the verdict undecidable."""

    def __init__(self, values: Mapping[str, object], hidden: Mapping[str, object], undecidable: Refuse) -> None:
        super().__init__(
            {
                key: _watched(value, hidden[key], undecidable) if key in hidden else value
                for key, value in values.items()
            }
        )
        self._closed = {key for key, below in hidden.items() if not below}
        for key in self._closed:  # C encoders bypass the methods: they must fail on the mask
            self[key] = _HIDDEN
        self._undecidable = undecidable

    def _look(self, key: object) -> None:
        if key in self._closed:
            self._undecidable(f"reads the masked argument {key!r}")

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # overridden, so that dict() and ** call __getitem__

    def __getitem__(self, key: str) -> object:
        self._look(key)
        return super().__getitem__(key)

    def get(self, key: str, default: object = None) -> object:
        """As a dict's, unless the value is masked."""
        self._look(key)
        return super().get(key, default)

    def _all(self) -> None:
        for key in sorted(self._closed):
            self._look(key)

    def values(self) -> dict_values[str, object]:
        """As a dict's, unless a value is masked."""
        self._all()
        return super().values()

    def items(self) -> dict_items[str, object]:
        """As a dict's, unless a value is masked."""
        self._all()
        return super().items()

    def pop(self, key: str, *default: object) -> object:
        """As a dict's, unless the value is masked."""
        self._look(key)
        return super().pop(key, *default)

    def copy(self) -> dict[str, object]:
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


def _watched(value: object, hidden: object, undecidable: Refuse) -> object:
    """Wrap an object with masked values inside; return any other value as it is."""
    if hidden and isinstance(hidden, dict) and isinstance(value, dict):
        return _Masked(value, hidden, undecidable)
    return value


_Tree: TypeAlias = "dict[str, _Tree]"


def _tree(pointers: Iterable[str], values: object) -> _Tree:
    """Return pointers as nested keys; a list on a path is masked as a whole."""
    tree: _Tree = {}
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


class ReplayRun(Run[InvokeContext]):
    """The state of a replayed call; its scope leaves the sessions of the gate alone."""

    def __init__(self, plan: CallPlan[InvokeContext], user: User, started: float, replay_id: str) -> None:
        super().__init__(plan, None, user, started)
        self.replay_id = replay_id

    def request_scope(self) -> ProviderScope:
        """A scope whose session belongs to this replay."""
        scope = self.scope
        if scope is None:
            session = None if self.session_id is None else f"{self.replay_id} {self.session_id}"
            owner = (self.user.tenant, self.user.id)
            scope = self.scope = self.plan.host.registry.request(session, owner)
        return scope


def _unrecorded(what: str) -> Any:
    return property(lambda ctx: ctx.undecidable(f"reads {what}"), doc="Never recorded.")


class ReplayContext(InvokeContext):
    """A context from a record; a read of unrecorded data makes the verdict undecidable."""

    __slots__ = ("row", "why")

    def __init__(
        self, plan: CallPlan[InvokeContext], user: User, started: float, row: Mapping[str, Any], replay_id: str
    ) -> None:
        self.run = ReplayRun(plan, user, started, replay_id)
        self.row = row
        self.why: str | None = None

    def undecidable(self, why: str) -> NoReturn:
        """Stop the replay of this call: a policy reads unrecorded data."""
        step = self.run.step
        if self.why is None and not step.shadow:  # a hook in shadow mode decides nothing
            self.why = f"{step.name} at {step.stage} {why}"
        raise Undecidable

    @property
    def raw_input(self) -> object:
        """Never recorded."""
        return self.undecidable("reads the raw arguments")

    task_id: str | None = _unrecorded("the id of the task")
    context_id: str | None = _unrecorded("the id of the task's context")

    @property
    def input(self) -> object:
        """The recorded arguments, once they are parsed."""
        if self.run.input_state != FROZEN:
            self.undecidable("reads arguments before they are parsed")
        shown = self.row["input"]
        if not isinstance(shown, dict):
            self.undecidable("reads arguments that are not recorded")
        return _Masked(shown, _tree(self.row["masked"], shown), self.undecidable)

    @input.setter
    def input(self, value: object) -> None:
        self.undecidable("changes the arguments")

    @property
    def input_hash(self) -> str:
        """As recorded."""
        return str(self.row["input_hash"])

    @property
    def masked_input(self) -> object:
        """As recorded."""
        return copy.deepcopy(self.row["input"])

    @masked_input.setter
    def masked_input(self, value: object) -> None:
        pass

    @property
    def tool_call(self) -> Any:
        """The call's ids; its arguments are not recorded."""
        return _Call(self)


class _Call:
    """Stands for the ``ToolCall`` of a recorded call."""

    synthetic_id = truncated = False
    chunk = None

    def __init__(self, ctx: ReplayContext) -> None:
        self._ctx = ctx
        self.id, self.name = ctx.row["call_id"] or "recorded", ctx.row["tool"]

    @property
    def arguments(self) -> object:
        """Never recorded."""
        return self._ctx.undecidable("reads the raw arguments")
