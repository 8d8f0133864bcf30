"""Fault injection for providers and stores: the n-th call fails, hangs or is slow."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, TypeVar, cast

from callgate.runtime.testing.fault_calls import Error, Faults, await_with_faults, counting, kind_of_call

T = TypeVar("T")


def Faulty(  # noqa: N802  (it makes an object of that kind)
    target: T,
    *,
    fails_at: int | Collection[int] = (),
    every: int | None = None,
    error: Error | None = None,
    delay: float = 0.0,
    hang: bool = False,
    only: Collection[str] | None = None,
) -> T:
    """Wrap *target*, a factory or an instance, so that some of its calls fail.

    For a factory (function, generator function, class) its own calls are counted. For an instance the calls of all
    public methods are counted together. ``isinstance``, signatures and attributes are those of the target.

    Args:
        target: the factory or the instance.
        fails_at: the numbers of the calls to fail, counted from 1.
        every: fail every n-th call.
        error: the error to raise; the target does not run. Default: ``InjectedFault``, unless *delay* or *hang* is set.
        delay: seconds to wait first. With *delay* alone, the target then runs.
        hang: wait forever.
        only: the names of the methods to count.

    Raises:
        ValueError: a number below 1.
    """
    faults = Faults(fails_at, every, error, delay, hang=hang)
    return cast("T", _Proxy(target, faults, None if only is None else frozenset(only)))


def FaultyStore(  # noqa: N802  (it makes an object of that kind)
    inner: T,
    fail_at: int | Collection[int] = (),
    *,
    every: int | None = None,
    when: Literal["before", "after"] = "before",
    error: Error | None = None,
    delay: float = 0.0,
) -> T:
    """Wrap *inner*, an object with async methods such as a store, so that some of its operations fail.

    Every awaited method counts, also of its parts (``store.effects``). Entering and leaving an async context manager
    that a method returns, such as a transaction, count too, and so do calls on it. A transaction that fails before its
    end is rolled back. The connection that ``driver()`` returns is not wrapped.

    Args:
        inner: the object.
        fail_at: the numbers of the operations to fail, counted from 1. Without it and *every* none fails, and
            ``faults_of(store).calls`` has their number.
        every: fail every n-th operation.
        when: with ``"before"`` the operation does not happen; with ``"after"`` it happens, but its result is lost, as
            when a connection breaks.
        error: the error to raise; default: ``InjectedFault``.
        delay: seconds to wait first.

    Raises:
        ValueError: a number below 1, or another *when*.
    """
    if when not in ("before", "after"):
        raise ValueError(f"when is {when!r}; give 'before' or 'after'")
    faults = Faults(fail_at, every, error, delay, after=when == "after")
    return cast("T", _StoreProxy(inner, faults, None))


def faults_of(proxy: object) -> Faults:
    """Return the ``Faults`` of an object that ``Faulty`` or ``FaultyStore`` made.

    Raises:
        TypeError: another function made *proxy*.
    """
    if not isinstance(type(proxy), type) or not issubclass(type(proxy), _Proxy):
        raise TypeError(f"{type(proxy).__name__} was not made by Faulty or FaultyStore")
    return cast("Faults", object.__getattribute__(proxy, "_callgate_faults"))


class _Proxy:
    """A proxy that looks like its target and counts its calls."""

    __slots__ = ("__weakref__", "_callgate_faults", "_callgate_name", "_callgate_only", "_callgate_target")

    def __init__(self, target: object, faults: Faults, only: frozenset[str] | None, name: str = "") -> None:
        for slot, value in (("target", target), ("faults", faults), ("only", only), ("name", name)):
            object.__setattr__(self, f"_callgate_{slot}", value)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_callgate_"):
            return object.__getattribute__(self, name)
        target = object.__getattribute__(self, "_callgate_target")
        if name == "__class__":
            return type(target)
        if name == "__signature__" and callable(target):
            return inspect.signature(target)
        found = getattr(target, name)
        only = object.__getattribute__(self, "_callgate_only")
        counted = not name.startswith("_") and callable(found) and not inspect.isclass(found)
        return self._callgate_wrap(found, name) if counted and (only is None or name in only) else found

    def _callgate_wrap(self, call: Callable[..., object], name: str) -> object:
        return counting(call, self._callgate_faults, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._callgate_target, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._callgate_target, name)

    def __call__(self, *args: object, **kwargs: object) -> object:
        target = self._callgate_target
        return counting(target, self._callgate_faults, getattr(target, "__name__", "call"))(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<faulty {self._callgate_target!r}>"

    def __str__(self) -> str:
        return str(self._callgate_target)

    def __hash__(self) -> int:
        return hash(self._callgate_target)

    def __eq__(self, other: object) -> bool:
        return bool(self._callgate_target == other)

    def __bool__(self) -> bool:
        return bool(self._callgate_target)

    def __len__(self) -> int:
        return len(self._callgate_target)

    def __iter__(self) -> Iterator[object]:
        return iter(self._callgate_target)

    def __contains__(self, item: object) -> bool:
        return item in self._callgate_target

    def __getitem__(self, key: object) -> object:
        return self._callgate_target[key]

    def __setitem__(self, key: object, value: object) -> None:
        self._callgate_target[key] = value

    def __enter__(self) -> object:
        entered = self._callgate_target.__enter__()
        return self if entered is self._callgate_target else entered

    def __exit__(self, *error: object) -> object:
        return self._callgate_target.__exit__(*error)

    async def __aenter__(self) -> object:
        entered = await self._callgate_target.__aenter__()
        return self if entered is self._callgate_target else entered

    async def __aexit__(self, *error: object) -> object:
        return await self._callgate_target.__aexit__(*error)


_VIEWS = ("in_namespace", "signed")
"""Methods that return the same store for other records, or with signatures."""


class _StoreProxy(_Proxy):
    """A proxy that counts the awaited methods of its target and of the target's parts."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or callable(found) or not _is_part(type(found)):
            return found
        return _StoreProxy(found, self._callgate_faults, None, f"{self._callgate_name}{name}.")

    def _callgate_wrap(self, call: Callable[..., object], name: str) -> object:
        faults, full = self._callgate_faults, f"{self._callgate_name}{name}"
        if kind_of_call(call) in {"coroutine", "async generator"}:
            return counting(call, faults, full)
        if name == "driver":
            return call

        @functools.wraps(call)
        def plain(*args: object, **kwargs: object) -> object:
            given = call(*args, **kwargs)
            if inspect.isawaitable(given):
                return await_with_faults(given, faults, full)
            if name in _VIEWS:
                return _StoreProxy(given, faults, None, self._callgate_name)
            entered = hasattr(type(given), "__aenter__")
            return _StoreProxy(given, faults, None, f"{full}.") if entered else given

        return plain

    async def __aenter__(self) -> object:
        target, faults, name = self._callgate_target, self._callgate_faults, self._callgate_name
        due = faults.count(f"{name}enter")
        if due and not faults.after:
            await faults.inject(f"{name}enter")
        entered = await target.__aenter__()
        if due and faults.after:
            await _lost(target, faults.inject(f"{name}enter"))
        if entered is target:
            return self
        simple = entered is None or isinstance(entered, str | bytes | int | float | list | tuple | dict | set)
        return entered if simple else _StoreProxy(entered, faults, None, name)

    async def __aexit__(self, *error: object) -> object:
        target, faults, name = self._callgate_target, self._callgate_faults, f"{self._callgate_name}exit"
        if not faults.count(name):
            return await target.__aexit__(*error)
        if faults.after:
            await target.__aexit__(*error)
            return await faults.inject(name)
        try:
            await faults.inject(name)
        except BaseException as fault:  # leave the context manager, so that it ends as failed
            await target.__aexit__(type(fault), fault, fault.__traceback__)
            raise
        return await target.__aexit__(*error)


def _is_part(kind: type) -> bool:
    """True if a class has async methods."""
    methods = (getattr(kind, name) for name in dir(kind) if not name.startswith("_"))
    return any(kind_of_call(method) in {"coroutine", "async generator"} for method in methods)


async def _lost(entered: AbstractAsyncContextManager[object], strike: Awaitable[None]) -> None:
    """Leave a context manager whose entry was lost, as a server ends the transaction of a broken connection."""
    try:
        await strike
    except BaseException as fault:
        await entered.__aexit__(type(fault), fault, fault.__traceback__)
        raise
