"""Objects of other packages, found by name in a group of entry points; loaded when the name is used, and not before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, TypeVar

from callgate.errors import CallgateError

T = TypeVar("T")
_NONE: Mapping[str, str] = MappingProxyType({})


class Unusable(Exception):
    """An entry point leads to an object that cannot be used; the text says why."""


def declared_names(group: str) -> set[str]:
    """Return the names that installed packages declare in a group of entry points."""
    from importlib import metadata

    return {point.name for point in metadata.entry_points(group=group)}


def load_installed(
    group: str,
    name: str,
    what: str,
    refuse: type[CallgateError],
    use: Callable[[object], T],
    own: Mapping[str, str] = _NONE,
) -> T:
    """Load the object that Callgate or another package declares under a name, and return what *use* makes of it.

    Args:
        group: the group of entry points.
        name: the name of the entry point.
        what: the kind of object, for messages, such as ``"job engine"``.
        refuse: the class of the errors raised.
        use: checks the loaded object, or converts it. It raises ``Unusable``, or any other exception, to refuse it.
        own: the names of Callgate, which no package can replace, with the value of their entry point.

    Raises:
        refuse: no package declares the name, several do, or what it names cannot be loaded or used.
    """
    point, package = _find(group, name, what, refuse, own)
    try:
        loaded = point.load()
    except Exception as error:
        raise _broken(point, package, what, refuse, error) from error
    try:
        return use(loaded)
    except refuse:
        raise
    except Exception as error:
        raise _broken(point, package, what, refuse, error) from error


def _find(group: str, name: str, what: str, refuse: type[CallgateError], own: Mapping[str, str]) -> tuple[Any, str]:
    """Return the entry point of a name, and the package that declares it."""
    from importlib import metadata

    if own.get(name):
        return metadata.EntryPoint(name, own[name], group), "callgate"
    found: dict[str, Any] = {}
    for point in metadata.entry_points(group=group):
        if point.name == name:  # of a package that is installed twice, Python imports the first
            found.setdefault(point.dist.name if point.dist else point.value, point)
    if not found:
        known = sorted({*own, *declared_names(group)})
        near = [f"; did you mean {one!r}?" for one in get_close_matches(name, known, n=1)]
        listed = f"; known: {', '.join(known)}" if known else ""
        raise refuse(
            f"no {what} {name!r}{near[0] if near else ''}{listed}. "
            f"Another package adds a {what} by an entry point in the group {group!r}; install that package"
        )
    if len(found) > 1:
        raise refuse(f"the {what} {name!r} is registered by {' and '.join(sorted(found))}; uninstall all but one")
    ((package, point),) = found.items()
    return point, package


def _broken(point: Any, package: str, what: str, refuse: type[CallgateError], error: Exception) -> CallgateError:
    reason = str(error) if isinstance(error, Unusable) else f"{type(error).__name__}: {error}"
    return refuse(
        f"the {what} {point.name!r} of the package {package!r} cannot be loaded from {point.value!r}: {reason}; "
        f"upgrade or repair {package}, or uninstall it"
    )
