"""Type checks for objects of dependency-injector, without an import of that package.

An object exists only after its package was imported, so a package that is not loaded has no objects to recognise.
"""

from __future__ import annotations

import sys
from typing import Any


def is_provider(value: object) -> bool:
    """Check whether *value* is a provider of dependency-injector."""
    kind = getattr(sys.modules.get("dependency_injector.providers"), "Provider", None)
    return kind is not None and isinstance(value, kind)


def is_scoped(value: object) -> bool:
    """Check whether *value* is a ``Scoped``."""
    kind = getattr(sys.modules.get("callgate.providers.scoped"), "Scoped", None)
    return kind is not None and isinstance(value, kind)


def marker_type() -> Any:
    """Return the class of ``Provide[...]`` markers, or None while no marker can exist."""
    return getattr(sys.modules.get("dependency_injector.wiring"), "Provide", None)
