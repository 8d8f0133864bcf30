"""Job engines by name: those of Callgate, and those of other packages."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from importlib import metadata
from typing import Any

from callgate.errors import RegistrationError
from callgate.runtime.jobs.backend import JobBackend

GROUP = "callgate.job_engines"
"""The group of entry points. A name in it leads to a class or function that returns a ``JobBackend`` without arguments."""

_OWN = {
    "celery": "callgate.runtime.hosts.celery:CeleryJobs",
    "embedded": "callgate.runtime.jobs.embedded:EmbeddedJobs",
    "procrastinate": "callgate.runtime.hosts.procrastinate:ProcrastinateJobs",
}
_MEMBERS = ("bind", "submit", "submitted", "retry_later", "cancel", "recover", "work", "open", "close")


def job_engine(name: str) -> JobBackend:
    """Make the job engine of a name: ``Gate(jobs="procrastinate")``. Its package is loaded here, and not before.

    Another package adds an engine by an entry point in the group ``callgate.job_engines``. It cannot replace an engine
    of Callgate.

    Raises:
        RegistrationError: no engine has this name, it needs settings, or the package that registered it is broken.
    """
    point, package = _point(name)
    try:
        factory: Any = point.load()
        missing = _missing(factory)
    except Exception as error:
        raise _broken(point, package, f"{type(error).__name__}: {error}") from error
    if missing:
        raise RegistrationError(
            f"the job engine {name!r} needs settings ({', '.join(missing)}): "
            f"import it from {point.module} and give Gate(jobs={point.attr or name}(...))"
        )
    try:
        engine: Any = factory()
    except RegistrationError:
        raise
    except Exception as error:
        raise _broken(point, package, f"{type(error).__name__}: {error}") from error
    absent = [member for member in _MEMBERS if not callable(getattr(engine, member, None))]
    if absent:
        raise _broken(point, package, f"what it returns has no {', '.join(absent)}")
    made: JobBackend = engine
    return made


def _point(name: str) -> tuple[metadata.EntryPoint, str]:
    """The entry point of a name, and the package that registered it."""
    if name in _OWN:
        return metadata.EntryPoint(name, _OWN[name], GROUP), "callgate"
    points = metadata.entry_points(group=GROUP)
    found = [point for point in points if point.name == name]
    packages = sorted(point.dist.name if point.dist else point.value for point in found)
    if not found:
        known = sorted({*_OWN, *points.names})
        near = [f"; did you mean {one!r}?" for one in get_close_matches(name, known, n=1)]
        raise RegistrationError(
            f"no job engine {name!r}{near[0] if near else ''}; known: {', '.join(known)}. "
            f"Another package adds a job engine by an entry point in the group {GROUP!r}."
        )
    if len(found) > 1:
        raise RegistrationError(
            f"the job engine {name!r} is registered by {' and '.join(packages)}; uninstall all but one"
        )
    return found[0], packages[0]


def _missing(factory: Any) -> list[str]:
    """The parameters of a factory that have no default."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(factory).parameters.values()
    return [one.name for one in parameters if one.default is one.empty and one.kind not in variadic]


def _broken(point: metadata.EntryPoint, package: str, reason: str) -> RegistrationError:
    return RegistrationError(
        f"the job engine {point.name!r} of the package {package!r} cannot be loaded from {point.value!r}: {reason}; "
        f"upgrade or repair {package}, or uninstall it"
    )
