"""Overrides for tests: other providers in place of those of a registry, and new instances of all that was built from them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from callgate.errors import ProviderError
from callgate.providers.exits import Exit, leave_all
from callgate.providers.injector import is_provider
from callgate.providers.ranks import Rank
from callgate.providers.recipe import MISSING, Recipe
from callgate.providers.recipes import describe_token
from callgate.providers.scope import ProviderScope, World
from callgate.providers.sessions import SessionTable

Layer = dict[object, Recipe]
"""The recipes of one block by key. An option of a configuration is its own key."""


class Overriding:
    """The overrides of one registry, one layer for each open block. A later layer wins; blocks may end in any order.

    What is built from an override gets a recipe of its own, and so an instance of its own. It lasts as long as all the
    blocks that it was built from: their end closes it.
    """

    def __init__(self, world: World, sessions: SessionTable, made_at_opening: Callable[[], Iterable[Recipe]]) -> None:
        self._world = world
        self._sessions = sessions
        self._made_at_opening = made_at_opening
        self._layers: list[Layer] = []
        self._given: Layer = {}
        self._copies: dict[tuple[Recipe, frozenset[Recipe]], Recipe] = {}
        self._container: Any = None  # its overrides, once there are any
        self._was_used = False
        self.changed: Callable[[], None] = lambda: None
        """Called after a block has begun or ended."""

    # ------------------------------------------------------------------ blocks

    def begin(self, sources: Mapping[object, object], held: Iterable[object] = ()) -> Layer:
        """Override the providers of these tokens. *held* are objects that stay as they are, such as hooks of a gate.

        Raises:
            ProviderError: a token has no provider, or an override would not reach what was made from it.
        """
        self._world.recipes.all()  # a provider may be known only as the argument of another one
        self._was_used = True
        layer = dict(self._replaced(token, source) for token, source in self._expanded(sources))
        self._layers.append(layer)
        try:
            self._apply(held)
        except BaseException:
            self.end(layer)
            raise
        self.changed()
        return layer

    def end(self, layer: Layer) -> list[Exit]:
        """End a block. Return the instances to close that were built from its overrides, in order."""
        self._layers = [one for one in self._layers if one is not layer]
        self._apply()
        given = frozenset(layer.values())
        over = {*given, *(made for (_, origins), made in self._copies.items() if origins & given)}
        self._copies = {key: made for key, made in self._copies.items() if made not in over}
        for recipe in over:
            recipe.is_over = recipe.rank > Rank.REQUEST
        sessions = [left for scope in self._sessions.scopes() for left in scope.take_out(over)]
        exits = [*sessions, *self._world.scope.take_out(over)]
        self.changed()
        return exits

    def _expanded(self, sources: Mapping[object, object]) -> Iterable[tuple[object, object]]:
        recipes = self._world.recipes
        if not any(isinstance(token, str) or is_provider(token) for token in sources):
            return sources.items()
        from callgate.providers.container_overrides import expanded

        return list(expanded(sources, recipes.key_of))

    def _replaced(self, token: object, source: object) -> tuple[object, Recipe]:
        recipes = self._world.recipes
        recipe = recipes.of(token)
        if not recipe.is_provided and recipe.key not in recipes.optional:
            advice = recipes.nested_name(token) or "register it on the gate first"
            raise ProviderError(f"there is no provider for {describe_token(token)} to override; {advice}")
        return recipe.key, recipes.substitute(recipe, source)

    # ------------------------------------------------------------------ reaching what depends on them

    def _apply(self, held: Iterable[object] = ()) -> None:
        """Put the layers into force: what depends on an override is made anew, while the layers last."""
        if self._container is not None:
            self._container.undo()
        given = self._given = {key: recipe for layer in self._layers for key, recipe in layer.items()}
        found = self._world.recipes.all() if given else []
        held = [*held, *(one.value for one in found if one.value is not MISSING and one.key not in given)]
        options = {one.key: given[one.key] for one in found if one.key in given and _place(one) is not None}
        current: Layer = {}
        foreign: list[Recipe] = []
        for one in found:
            origins = self._origins(one)
            if one.key in options or (one.key not in given and not origins):
                continue
            recipe = given.get(one.key)
            if recipe is not None:
                current[one.key] = self._copy(recipe, self._origins(recipe))
                continue
            _refuse_unreached(one, origins, held)
            if one.foreign is None:
                current[one.key] = self._copy(one, origins)
            elif _is_kept(one):
                foreign.append(one)
        current.update((key, recipe) for key, recipe in given.items() if key not in current and key not in options)
        self._world.replace(current)
        self._replace_in_container(found, options, foreign)

    def _replace_in_container(self, found: Iterable[Recipe], options: Layer, kept: Iterable[Recipe]) -> None:
        current = self._world.overrides
        replaced = [one for one in found if one.foreign is not None and one.key in current]
        if not (replaced or options or kept):
            return
        from callgate.providers.container_overrides import ContainerOverrides, bridge, copied, override_value

        if self._container is None:
            self._container = ContainerOverrides()
        for one in kept:
            self._container.put(one.foreign, copied(one.foreign))
        for one in replaced:
            self._container.put(one.foreign, bridge(self._world, current[one.key]))
        by_key = {one.key: one for one in found}
        # A later block wins also where an earlier one sets the whole configuration.
        ordered = [(key, recipe) for layer in self._layers for key, recipe in layer.items() if key in options]
        values = [(_place(by_key[key]), override_value(recipe)) for key, recipe in ordered]
        self._container.configure(values, [one.foreign for one in found])

    def _origins(self, recipe: Recipe) -> frozenset[Recipe]:
        """Return the overrides that an instance of this recipe is built from, itself or through others."""
        found: set[Recipe] = set()
        self._collect(recipe, found, {recipe})
        return frozenset(found)

    def _collect(self, recipe: Recipe, found: set[Recipe], seen: set[Recipe]) -> None:
        found.update(self._given[key] for _, key in recipe.maybe if key in self._given)
        for need in recipe.needs:
            if need in seen:
                continue
            seen.add(need)
            other = self._given.get(need.key)
            if other is not None:
                found.add(other)
            elif need.foreign is not None:
                found.update(self._behind(need))
            if other is None or other not in seen:
                self._collect(other or need, found, seen)

    def _behind(self, need: Recipe) -> Iterator[Recipe]:
        """Yield the overrides that a provider of the container depends on and does not name."""
        from callgate.providers.container_overrides import is_container_itself, option_path, reads

        if is_container_itself(need.foreign):
            yield from self._given.values()
        elif option_path(need.foreign) is not None:
            for key, other in self._given.items():
                changed = option_path(key) if is_provider(key) else None
                if changed is not None and reads(need.foreign, changed):
                    yield other

    def _copy(self, recipe: Recipe, origins: frozenset[Recipe]) -> Recipe:
        """Return the recipe of what is built from these overrides; the same for the same ones."""
        if not origins:
            return recipe
        made = self._copies.get((recipe, origins))
        if made is None:
            made = self._copies[recipe, origins] = copy.copy(recipe)
            more = tuple((name, self._given[key]) for name, key in recipe.maybe if key in self._given)
            made.kwargs, made.needs = (*made.kwargs, *more), (*made.needs, *(need for _, need in more))
        return made

    # ------------------------------------------------------------------ making what synchronous code looks up

    def missing(self) -> list[Recipe]:
        """Return the recipes of the global instances that do not exist now, and that synchronous code expects."""
        scope = self._world.scope
        overrides = self._world.overrides
        given = [overrides[key] for key in self._given if key in overrides and overrides[key].rank is Rank.GLOBAL]
        wanted = [*given, *self._made_at_opening()]
        return [one for one in wanted if one.factory is not None and scope.peek(one) is MISSING]

    async def prepare(self, request: ProviderScope | None = None) -> None:
        """Make the missing global instances, as the opening of the gate does, and those that the session had before.

        Raises:
            ProviderError: a factory failed; its error is the cause.
        """
        state: object = None
        while state is not self._world.plain:
            state = self._world.plain
            for recipe in self.missing():
                try:
                    await _make(self._world.scope, recipe)
                except ProviderError:
                    if state is self._world.plain:
                        raise
                    break  # another block began or ended meanwhile, and this one may need other instances now
        session = None if request is None else request.session(make=False)
        if session is None:
            return
        had = {one.key for one in session.instances}
        for key, recipe in self._world.overrides.items():
            if recipe.rank is Rank.SESSION and key in had and recipe.factory and session.peek(recipe) is MISSING:
                await _make(session, recipe)

    @property
    def is_unprepared(self) -> bool:
        """True when a call has something to make before its first step."""
        overrides = self._world.overrides.values()
        return self._was_used and (any(one.rank is Rank.SESSION for one in overrides) or bool(self.missing()))


class OverrideBlock:
    """A block of overrides: ``async with`` or ``with``. The end closes what was built from them.

    ``with`` raises ``ProviderError`` where the closing is asynchronous and nothing can await it.
    """

    def __init__(self, overriding: Overriding, sources: Mapping[object, object], held: Iterable[object] = ()) -> None:
        given: object = sources
        if not isinstance(given, Mapping):
            raise TypeError(
                f"override takes a mapping, not {type(given).__name__}; write override({{token: instance}})"
            )
        self._overriding = overriding
        self._sources, self._held = sources, held
        self._layers: list[Layer] = []

    def __enter__(self) -> None:
        self._layers.append(self._overriding.begin(self._sources, self._held))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._leave(self._end())

    async def __aenter__(self) -> None:
        self._layers.append(self._overriding.begin(self._sources, self._held))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await leave_all(self._end())

    def _end(self) -> list[Exit]:
        """End the block that began last.

        Raises:
            ProviderError: no block of this override is open.
        """
        if not self._layers:
            raise ProviderError("this override has ended already; each `with` of it ends once")
        return self._overriding.end(self._layers.pop())

    def _leave(self, exits: list[Exit]) -> None:
        """Close the instances of a block that has ended."""
        names = ", ".join(one.recipe.name for one in exits if one.is_async)
        closing = leave_all(one for one in exits if not one.is_async)
        try:
            closing.send(None)
        except StopIteration:
            pass
        finally:
            closing.close()
        if names:
            raise ProviderError(f"closing {names} is asynchronous: write `async with` for the block of override()")


async def _make(scope: ProviderScope, recipe: Recipe) -> None:
    try:
        await scope.provide(recipe)
    except ProviderError:
        raise
    except Exception as error:
        raise ProviderError(f"the factory of {recipe.name} failed: {type(error).__name__}") from error


def _place(recipe: Recipe) -> object:
    """Return the place of a configuration or option; None for the recipe of anything else."""
    if recipe.foreign is None:
        return None
    from callgate.providers.container_overrides import option_path

    return option_path(recipe.foreign)


def _is_kept(recipe: Recipe) -> bool:
    from callgate.providers.container_overrides import is_singleton

    return is_singleton(recipe.foreign)


def _refuse_unreached(recipe: Recipe, origins: Collection[Recipe], held: Iterable[object]) -> None:
    """Refuse overrides that would not reach an instance, or whose instances would be used after they are closed."""
    names = ", ".join(sorted({one.name for one in origins}))
    is_lasting = recipe.foreign is None or _is_kept(recipe)
    narrower = next((one for one in origins if one.rank < recipe.rank), None) if is_lasting else None
    if narrower is not None:
        raise ProviderError(
            f"the override of {narrower.name} lasts for one {narrower.rank}, and {recipe.name}, which outlives it, is made "
            "from it; override it with a factory or an instance"
        )
    if recipe.foreign is None:
        return
    from callgate.providers.container_overrides import instance_among, is_resource

    if is_resource(recipe.foreign):
        raise ProviderError(
            f"the override of {names} does not reach {recipe.name}, a Resource that is made from it once; override "
            f"{recipe.name} as well: gate.override({{..., Container.{recipe.name}: fake}})"
        )
    found = instance_among(recipe.foreign, held) if _is_kept(recipe) else None
    if found is not None:
        kind = type(found).__name__
        raise ProviderError(
            f"the override of {names} does not reach the {kind} that the gate got as an object: it was made before, by "
            f"{recipe.name} of the container; give the gate that provider, or the class {kind} with parameters marked "
            "Provide[...], in place of the object"
        )
