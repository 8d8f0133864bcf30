"""The provider of OpenTelemetry that a hook works with. This module does not import OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import Any, ClassVar

from callgate.errors import HookError
from callgate.hooks.base import Hook, not_overridden
from callgate.hooks.stages import Stage


class ProviderHook(Hook):
    """A hook that works with a provider: its own, or the global one as soon as the application has set it.

    The stages are read when the hook is registered, and again when the gate opens.
    """

    _api: ClassVar[str]
    _kind: ClassVar[str]
    _connected = False
    _skipped: Collection[Stage] = ()
    _unused: Collection[Stage] = ()

    def _start(self, cls: type[Hook], provider: object, skipped: Iterable[Stage] = ()) -> None:
        """Set the stages to leave out with a provider (*skipped*) and without one, and use *provider* if there is one."""
        self._skipped, self._unused = not_overridden(self, cls, skipped), not_overridden(self, cls, Stage)
        if provider is not None:
            self._use(provider)
            self._connected = True

    def _use(self, provider: object) -> None:
        """Make what the hook needs of a provider."""
        raise NotImplementedError

    def _connect(self) -> bool:
        """Use the global provider, unless the hook has a provider; an unset global one is a proxy."""
        if not self._connected and (api := sys.modules.get(f"opentelemetry.{self._api}")) is not None:
            provider = getattr(api, f"get_{self._kind}_provider")()
            if "Proxy" not in type(provider).__name__:
                self._use(provider)
                self._connected = True
        return self._connected

    @property
    def leaves_out(self) -> Collection[Stage]:  # type: ignore[override]  # it changes when a provider is set
        """The stages without a method of a subclass, while there is no provider."""
        return self._skipped if self._connect() else self._unused

    @property
    def runs_nowhere(self) -> str | None:  # type: ignore[override]  # as above
        """The reason why the hook does nothing."""
        if self._connect():
            return None
        call = f"opentelemetry.{self._api}.set_{self._kind}_provider(...)"
        return f"there is no {self._kind} provider; call {call} before the gate opens, or give {type(self).__name__}(...) one"


def made_by(provider: object, method: str, hook: str) -> Any:
    """Return the meter or tracer that *method* of a provider makes.

    Raises:
        HookError: the object is no provider.
    """
    make = getattr(provider, method, None)
    if not callable(make):
        raise HookError(f"{hook}: {type(provider).__name__} has no {method}(); give a provider of OpenTelemetry")
    return make("callgate")
