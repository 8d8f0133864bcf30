"""The principal: the user that a tool call runs for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from callgate.providers.ids import flaw_of

_NO_CLAIMS: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class User:
    """The principal of a tool call, for RBAC and tenants.

    Args:
        id: the id of the user.
        tenant: the tenant of the user; an empty text is None.
        roles: names of roles; kept as a frozen set.
        scopes: names of scopes; kept as a frozen set.
        claims: further facts about the user, such as the claims of an ID token: a JSON object. It is kept as an
            immutable copy, stored with suspended calls and jobs, and absent from ``repr()``.
        token: an access token for calls on the user's behalf. It is not compared, and it never enters ``repr()``, logs,
            audit rows, spans, errors, stores or pickles. A resumed call or a job has none, unless ``refresh_user``
            returns a user with a new one.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the token is empty, or the id or the tenant is no text that a database can keep: it has a NUL
            character, half of a surrogate pair, or more than 512 bytes.
    """

    id: str
    tenant: str | None = None
    roles: frozenset[str] | Iterable[str] = frozenset()
    scopes: frozenset[str] | Iterable[str] = frozenset()
    claims: Mapping[str, object] = field(default_factory=lambda: _NO_CLAIMS, repr=False, hash=False, kw_only=True)
    token: str | None = field(default=None, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        id: object = self.id
        if not isinstance(id, str):  # a missing header would be a user, whom all that lack it share
            raise TypeError(f"User.id is a text, not {type(id).__name__}; write User(str(...))")
        tenant: object = self.tenant
        if tenant == "" or not isinstance(tenant, str | None):
            self._no_tenant(tenant)
        for name in ("id", "tenant"):
            if (flaw := flaw_of(getattr(self, name))) is not None:
                raise ValueError(f"User.{name} {flaw}; a database cannot keep it")
        for name in ("roles", "scopes"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise TypeError(f"User.{name} takes a collection of names, not one string; write {name}={{{value!r}}}")
            object.__setattr__(self, name, frozenset(value))
        if self.claims is not _NO_CLAIMS:
            if not isinstance(self.claims, Mapping):
                raise TypeError(f"User.claims is a mapping, not {type(self.claims).__name__}")
            object.__setattr__(self, "claims", _frozen(self.claims))
        if self.token is not None:
            self._check_token(self.token)

    @staticmethod
    def _check_token(token: object) -> None:
        if not isinstance(token, str):
            raise TypeError(f"User.token is a text, not {type(token).__name__}")
        if not token:
            raise ValueError("User.token is empty; write token=None for a user without a token")

    def _no_tenant(self, tenant: object) -> None:
        """Make an empty tenant None: stores keep both as one, so hooks must not tell them apart."""
        if not isinstance(tenant, str):
            raise TypeError(f"User.tenant is a text or None, not {type(tenant).__name__}")
        object.__setattr__(self, "tenant", None)

    def __copy__(self) -> Self:
        return self  # immutable

    def __deepcopy__(self, memo: Mapping[int, object]) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self), self.id, self.tenant, tuple(self.roles), tuple(self.scopes), plain(self.claims))


def plain(value: object) -> object:
    """Return claims as fresh dicts and lists."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def _frozen(value: object) -> object:
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("User.claims is a JSON object: its names are texts")
        return MappingProxyType({name: _frozen(item) for name, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"User.claims holds JSON values only, not {type(value).__name__}; write a text or a number")


def _unpickled(
    kind: type[User],
    id: str,
    tenant: str | None,
    roles: tuple[str, ...],
    scopes: tuple[str, ...],
    claims: dict[str, object],
) -> User:
    return kind(id, tenant, roles, scopes, claims=claims)


ANONYMOUS = User(id="anonymous")
