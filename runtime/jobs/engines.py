"""Job engines by name: those of Callgate, and those of other packages."""

from __future__ import annotations

import inspect
from typing import Any

from callgate.errors import RegistrationError
from callgate.providers.installed import Unusable, load_installed
from callgate.runtime.options.job_engine import JobBackend

GROUP = "callgate.job_engines"
"""The group of entry points. A name in it leads to a class or function that returns a ``JobBackend`` without arguments."""

_OWN = {
    "celery": "callgate.runtime.hosts.celery:CeleryJobs",
    "embedded": "callgate.runtime.jobs.embedded:EmbeddedJobs",
    "procrastinate": "callgate.runtime.hosts.procrastinate:ProcrastinateJobs",
}
_MEMBERS = ("bind", "submit", "submit_many", "submitted", "retry_later", "cancel", "recover", "work", "open", "close")


def job_engine(name: str) -> JobBackend:
    """Make the job engine of a name: ``Gate(jobs="procrastinate")``. Its package is loaded here, and not before.

    Another package adds an engine by an entry point in the group ``callgate.job_engines``. It cannot replace an engine
    of Callgate.

    Raises:
        RegistrationError: no engine has this name, it needs settings, or the package that registered it is broken.
    """

    def use(factory: Any) -> JobBackend:
        if missing := _missing(factory):
            module, _, attribute = _OWN.get(name, f"{factory.__module__}:{factory.__name__}").partition(":")
            raise RegistrationError(
                f"the job engine {name!r} needs settings ({', '.join(missing)}): "
                f"import it from {module} and give Gate(jobs={attribute}(...))"
            )
        engine: Any = factory()
        if absent := [member for member in _MEMBERS if not callable(getattr(engine, member, None))]:
            raise Unusable(f"what it returns has no {', '.join(absent)}")
        made: JobBackend = engine
        return made

    return load_installed(GROUP, name, "job engine", RegistrationError, use, _OWN)


def _missing(factory: Any) -> list[str]:
    """The parameters of a factory that have no default."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(factory).parameters.values()
    return [one.name for one in parameters if one.default is one.empty and one.kind not in variadic]
