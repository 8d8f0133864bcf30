"""A policy: the tools and hooks of a gate together. It is checked as a whole before it takes effect; nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from callgate.errors import HookError
from callgate.hooks.linter import Finding, lint_hooks
from callgate.hooks.selection import MAX_HOOKS, Registration, may_ask, may_hide, why_not
from callgate.hooks.stages import Stage
from callgate.runtime.pipeline.approval import of_tool
from callgate.runtime.pipeline.injection import keys_bound_by, supplies_of, supplies_of_hook
from callgate.runtime.pipeline.services import Services
from callgate.tools.declaring.component import attached_validator
from callgate.tools.definition import Effect, NoSchemaMode, ToolDefinition
from callgate.tools.definitions import Definitions
from callgate.tools.record import ToolRecord
from callgate.tools.registry import Change

Brought: TypeAlias = Mapping[str, Sequence[object]]
"""The hooks with ``check_tools`` that tools bring, by tool."""
_AUTHORISING = {Stage.WILL_AUTHORIZE, Stage.WILL_AUTHORIZE_INPUT}


class Hooked(NamedTuple):
    """A tool with the hooks that its plan is made of."""

    record: ToolRecord
    definition: ToolDefinition
    registrations: Sequence[Registration]

    def askable(self) -> list[Registration]:
        """Return the hooks that decide who sees the tool."""
        return [one for one in self.registrations if may_hide(one, self.definition)]

    def is_guarded(self) -> bool:
        """Return True if the tool changes nothing, or a step authorises every call of it."""
        if (
            self.definition.effect is Effect.READ
            or self.definition.allowed_roles is not None
            or self.asks_for_approval()
        ):
            return True
        return any(_authorises(one) and why_not(one, self.definition) is None for one in self.registrations)

    def asks_for_approval(self) -> bool:
        """Return True if the tool, its missing schema or a hook requires approval for some of its calls."""
        if of_tool(self.record.requires_approval) is not None:
            return True
        bare = self.definition.parameters is None and attached_validator(self.record.component) is None
        if bare and self.definition.no_schema_mode is NoSchemaMode.HUMAN_APPROVAL:
            return True
        return any(may_ask(one, self.definition) for one in self.registrations)


class Policy:
    """The tools of a gate, and the hooks of each; *own* returns the hooks that a tool itself brings.

    *brought* are those of them with ``check_tools``, by tool; without it they are looked up. ``changed`` makes a policy that
    visits only the tools of the change, so that many changes of a gate with many tools cost no more than those of a few.
    """

    def __init__(
        self,
        services: Services,
        tools: Mapping[str, ToolRecord],
        shared: Sequence[Registration],
        own: Callable[[ToolRecord], Sequence[Registration]],
        brought: Brought | None = None,
    ) -> None:
        self.tools = tuple(tools.values())
        self.shared = tuple(shared)
        self._services = services
        self._own = own
        self._by_name, self._brought = tools, brought
        self._change: tuple[Policy, Change] | None = None

    def of(self, record: ToolRecord) -> Hooked:
        """Return a tool with its hooks."""
        return Hooked(record, record.definition, (*self.shared, *self._own(record)))

    def since(self, before: Policy) -> Policy:
        """Return the part of this policy that is new: if the hooks are the same, its tools that were not there *before*."""
        if before.shared != self.shared:
            return self
        if self._change is not None and self._change[0] is before:
            added = {name: record for name, record in self._change[1].items() if record is not None}
        else:
            known = {id(record) for record in before.tools}
            added = {name: one for name, one in self._by_name.items() if id(one) not in known}
        return Policy(self._services, added, self.shared, self._own)

    def changed(self, change: Change) -> Policy:
        """Return the policy with other tools."""
        tools, brought = {**self._by_name}, {**self.brought()}
        for name, record in change.items():
            brought.pop(name, None)
            if record is None:
                tools.pop(name, None)
                continue
            tools[name] = record
            if hooks := self._checking_of(record):
                brought[name] = hooks
        made = Policy(self._services, tools, self.shared, self._own, brought)
        made._change = self, change
        return made

    def brought(self) -> Brought:
        """Return the hooks with ``check_tools`` that tools bring, by tool."""
        if self._brought is None:
            found = {name: self._checking_of(record) for name, record in self._by_name.items()}
            self._brought = {name: hooks for name, hooks in found.items() if hooks}
        return self._brought

    def _checking_of(self, record: ToolRecord) -> list[object]:
        return [one.hook for one in self._own(record) if _checks_tools(one.hook)]

    def unguarded(self) -> list[ToolRecord]:
        """Return the tools with possible effects that no step authorises."""
        return [record for record in self.tools if not self.of(record).is_guarded()]

    def lint_hooks(self) -> list[Finding]:
        """Return the findings about hooks that never run."""
        definitions = [record.definition for record in self.tools]
        found = lint_hooks(self.shared, definitions)
        for record in self.tools:
            found += lint_hooks(self._own(record), definitions, record.id)
        return found

    def check_plans(self, added: Sequence[Registration] = (), *, unbound: bool = False) -> None:
        """Refuse hooks if the plan of a tool would be refused with them: those *added*, or with *unbound* all of them.

        Every hook and tool counts after the removal of a hook that binds providers.

        Raises:
            HookError: a tool has too many hooks.
            ProviderError: a marked parameter has no provider.
        """
        checked = set[object]()
        for record in self.tools:
            own = self._own(record)
            if len(self.shared) + len(own) > MAX_HOOKS:
                count = len(self.shared) + len(own)
                raise HookError(f"{record.id} has {count} hooks; {MAX_HOOKS} is the most")
            if unbound:
                supplies_of(self._services, record, (*self.shared, *own))
            elif added and (bound := keys_bound_by(self._services.registry, own)) not in checked:
                checked.add(bound)
                bound |= keys_bound_by(self._services.registry, self.shared)
                for one in added:
                    supplies_of_hook(self._services, one, bound)

    def check_hooks(self, before: Policy | None = None) -> None:
        """Call ``check_tools`` of every hook that has it, with the definitions of the tools.

        With the policy *before* this one, hooks that it has already checked for the same tools are skipped. After a
        refusal the hooks are told of its tools again.

        Raises:
            HookError: a hook refuses them, such as a rule about a tool that does not exist.
        """
        definitions = Definitions(self._by_name)
        same = before is not None and self._change is None and before.tools == self.tools
        done = before._checking() if before is not None and same else {}
        try:
            for identity, hook in self._checking().items():
                if identity not in done:
                    hook.check_tools(definitions)
        except BaseException:
            if before is not None and not same:
                with suppress(HookError):
                    before.check_hooks()
            raise

    def _checking(self) -> dict[int, Any]:
        """Return the hook objects with ``check_tools``, by identity."""
        hooks = [one.hook for one in self.shared if _checks_tools(one.hook)]
        for brought in self.brought().values():
            hooks += brought
        return {id(hook): hook for hook in hooks}


def _checks_tools(hook: object) -> bool:
    return hasattr(hook, "check_tools") and not isinstance(hook, type)


def _authorises(one: Registration) -> bool:
    """Return True if a hook may refuse any call of its tools; in shadow mode it only logs its verdict."""
    return one.guards and not one.is_shadow and not _AUTHORISING.isdisjoint(one.all_stages())
