"""Dependency injection: the marked parameters of tools, hook methods and hook classes, found at registration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from types import CoroutineType
from typing import Any

from callgate.errors import ProviderError, ProviderMissing
from callgate.hooks.context import InvokeContext
from callgate.hooks.selection import Registration
from callgate.hooks.stages import STAGES, Section
from callgate.hooks.state.host import new_instance
from callgate.providers.markers import Injected
from callgate.providers.ranks import Rank
from callgate.providers.recipe import MISSING, Recipe
from callgate.providers.recipes import scoped_among, takes_built_in
from callgate.providers.registry import ProviderRegistry
from callgate.providers.scope import ProviderScope
from callgate.runtime.pipeline.guards import constructor_parameters, marked_parameters
from callgate.runtime.pipeline.services import Services
from callgate.tools.record import ToolRecord


class Supply:
    """The values for the marked parameters of one callable, in the scope of an invocation.

    *bound* are the keys that hooks bind. ``in_unit`` means that a value is part of the unit of work, ``carries`` that this
    part takes the claim of the effect.

    Raises:
        ProviderError: no provider exists, or it depends on itself. Names *owner*, the parameter, the path and the
        token.
    """

    __slots__ = ("_given", "_maybe", "_plain", "_seen", "_sure", "_world", "carries", "in_unit", "wanted")

    def __init__(
        self,
        registry: ProviderRegistry,
        injected: Collection[Injected],
        bound: Collection[object] = (),
        owner: str = "",
    ) -> None:
        self._world = registry.world
        self.wanted = tuple((one.name, registry.recipes.of(one.token, one.modifier)) for one in injected)
        defaults = {one.name for one in injected if one.optional}
        # A parameter with a default and without a provider: only a hook or an override can give it a value.
        self._maybe = tuple(one for one in self.wanted if one[0] in defaults and not one[1].is_provided)
        self._sure = tuple(one for one in self.wanted if one not in self._maybe)
        registry.recipes.optional.update(recipe.key for _, recipe in self._maybe)
        for name, recipe in self._sure:
            registry.recipes.check(recipe, bound, f"{owner}: parameter {name!r}")
        self.in_unit = any(recipe.rank is Rank.EXECUTION for _, recipe in self.wanted)
        self.carries = self.in_unit and any(takes_built_in(recipe) for _, recipe in self.wanted)
        # By name: its recipe, and the provider of dependency-injector that needs no scope.
        self._plain = tuple((name, recipe, _lone(recipe)) for name, recipe in self._sure)
        # The last values, if all are global instances, and the state of the providers at that time.
        self._given: dict[str, object] = {}
        self._seen: object = self

    def take(self, ctx: InvokeContext) -> dict[str, object]:
        """Return the instances by parameter, without waiting. Raises ``ProviderError`` if one is asynchronous."""
        taken = {name: ctx.run.innermost_scope().take(recipe) for name, recipe in self._sure}
        for name, recipe in self._maybe:
            with suppress(ProviderMissing):
                taken[name] = ctx.run.innermost_scope().take(recipe)
        return taken

    def ready(self, ctx: InvokeContext) -> dict[str, object] | None:
        """Return the cached result of ``get``, which is read-only, or None if a provider has to run."""
        if self._seen is self._world.plain and ctx.run.scope is None and not ctx.run.session_id:
            return self._given
        return None

    async def get(self, ctx: InvokeContext) -> dict[str, object]:
        """Return the instances by parameter, read-only; make those that their scope does not have yet."""
        if (supplied := self.ready(ctx)) is not None:
            return supplied
        if ctx.run.scope is not None or ctx.run.session_id or self._world.overrides:
            return await self._from_scope(ctx.run.innermost_scope())
        supplied = {}
        # Without bindings and overrides, global instances are final.
        made, plain = self._world.scope.instances, self._world.plain
        lasts = True
        for name, recipe, ask in self._plain:
            if ask is not None:
                found, lasts = ask(), False
                if found.__class__ is CoroutineType or hasattr(found.__class__, "__await__"):
                    found = await found
            elif (found := recipe.value) is MISSING:
                lasts = lasts and recipe.scoped is None
                if recipe.is_overridden or (found := made.get(recipe, MISSING)) is MISSING:
                    found, lasts = await ctx.run.innermost_scope().provide(recipe), False
            supplied[name] = found
        if lasts:
            self._given, self._seen = supplied, plain
        return supplied

    async def _from_scope(self, scope: ProviderScope) -> dict[str, object]:
        supplied = {}
        for name, recipe in self._sure:
            supplied[name] = await scope.provide(recipe)
        for name, recipe in self._maybe:
            with suppress(ProviderMissing):
                supplied[name] = await scope.provide(recipe)
        return supplied


def _lone(recipe: Recipe) -> Callable[[], Any] | None:
    return recipe.foreign if recipe.foreign is not None and not scoped_among(recipe) else None


# ---------------------------------------------------------------------- the marked parameters of a plan


def supplies_of(services: Services, record: ToolRecord, hooks: Sequence[Registration]) -> dict[object, Supply]:
    """Return the providers of the marked parameters of a tool and its hooks, by function or class.

    Raises:
        ProviderError: a parameter has no provider.
    """
    bound, found = keys_bound_by(services.registry, hooks), dict[object, Supply]()
    if record.injected:
        found[record] = Supply(services.registry, record.injected, bound, f"tool {record.id!r}")
    for one in hooks:
        found |= supplies_of_hook(services, one, bound)
    return found


def supplies_of_hook(services: Services, one: Registration, bound: frozenset[object]) -> dict[object, Supply]:
    """Return the providers of a hook's marked parameters, where hooks bind the keys *bound*; raise as ``supplies_of``."""
    wanted: list[tuple[object, str, tuple[Injected, ...]]] = []
    within: set[object] = set()  # the functions that run in an execution
    if one.is_class and services.resolve is new_instance:
        from callgate.hooks.signatures import check_constructor  # few hooks are classes

        check_constructor(one.hook, one.name)
        wanted.append((one.hook, f"hook {one.name}", constructor_parameters(one.hook)))
    for stage in one.all_stages():
        method = getattr(one.hook, stage.value)
        function = getattr(method, "__func__", method)
        wanted.append((function, f"hook {one.name}.{stage}", marked_parameters(one, stage)))
        if STAGES[stage].section is Section.EXECUTE:
            within.add(function)
    found = {key: Supply(services.registry, marked, bound, owner) for key, owner, marked in wanted if marked}
    for key, owner, _ in wanted:
        if key in found and found[key].in_unit and key not in within:
            raise ProviderError(
                f"{owner} takes a provider of the scope 'execution'; only the tool, around_execute, will_execute and "
                "did_execute are in an execution: use a provider of the scope 'request'"
            )
    return found


def keys_bound_by(registry: ProviderRegistry, hooks: Iterable[Registration]) -> frozenset[object]:
    """Return the keys of the providers that hooks bind."""
    enforced = [one for one in hooks if not one.is_shadow]
    return frozenset(registry.recipes.key_of(token) for one in enforced for token in one.option("binds", ()))
