"""The scrubber of one tool call: removes known secrets from outputs, errors and logs.

Secrets are removed from all values. Values that a redaction hook masked in the input are removed from errors and logs only.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Protocol

import orjson

from callgate.providers.detectors import MASK, Detector, detect
from callgate.providers.spellings import (
    SHORTEST_SECRET,
    Needles,
    as_bytes,
    holds,
    needles_of,
    spellings,
    spellings_of_token,
)

_MEMBERS = ("strerror", "filename", "filename2", "msg", "name", "path", "text", "reason", "value", "code")


class _ScrubbedRun(Protocol):
    scrubber: Scrubber | None


class _ScrubbedCall(Protocol):
    @property
    def run(self) -> _ScrubbedRun: ...


class Scrubber:
    """The values that one tool call must not show; ``text``, ``value`` and ``error`` remove them."""

    __slots__ = ("_detectors", "_masked", "_needles", "_new", "_secrets")

    def __init__(self) -> None:
        self._secrets: tuple[str, ...] = ()
        self._needles: Needles = ()
        self._masked: tuple[str, ...] = ()
        self._detectors: tuple[Detector, ...] = ()
        self._new: list[Iterable[str]] = []  # processed when there is a text to scrub

    @classmethod
    def of(cls, ctx: _ScrubbedCall) -> Scrubber:
        """Return the scrubber of a call, and create it on first use."""
        known = ctx.run.scrubber
        if known is None:
            known = ctx.run.scrubber = cls()
        return known

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that are removed from everything, longest first."""
        return self._secrets

    def add_token(self, token: str) -> None:
        """Remove a user's token from everything."""
        if self._secrets:
            self.add_secrets(spellings(token))
        else:
            self._secrets, self._needles = spellings_of_token(token)

    def add_secrets(self, known: Iterable[str]) -> None:
        """Remove these values, as ``spellings`` returns them, from everything."""
        self._secrets = tuple(sorted({*self._secrets, *known}, key=len, reverse=True))
        self._needles = needles_of(self._secrets)

    def add_masked(self, values: Iterable[str], detectors: Collection[Detector] = ()) -> None:
        """Remove these values, and the findings of the detectors, from texts."""
        if values:
            self._new.append(values)
        if detectors:
            self._detectors = tuple(dict.fromkeys((*self._detectors, *detectors)))

    def _process_new(self) -> None:
        new = {one for values in self._new for one in values if len(one) >= SHORTEST_SECRET}
        self._new = []
        self._masked = tuple(sorted({*self._masked, *new}, key=len, reverse=True))

    def text(self, text: str) -> str:
        """Scrub a text of an error or a log."""
        if self._new:
            self._process_new()
        for one in (*self._secrets, *self._masked):
            if one in text:
                text = text.replace(one, MASK)
        return detect(text, self._detectors, MASK)

    def value(self, value: object) -> object:
        """Return a JSON value without the secrets, or the same object if it has none."""
        if not self._secrets:
            return value
        try:
            shown = orjson.dumps(value)
        except TypeError:
            return self._scrubbed(value)
        from callgate.providers.content_json import may_hold  # few calls have secrets

        if may_hold(shown):  # the data of content blocks is searched as bytes: its base64 may spell anything
            clean = self._scrubbed(value)
            return value if clean == value else clean
        return self._scrubbed(value) if holds(shown, self._needles) else value

    def _scrubbed(self, value: object) -> object:
        if isinstance(value, str):
            return self._text_without_secrets(value)
        if isinstance(value, Mapping):
            from callgate.providers.content_json import data_member

            member = data_member(value)
            return {
                self._scrubbed(key): self._scrubbed(item) if key != member else self._data_without_secrets(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._scrubbed(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return MASK if self._text_without_secrets(repr(value)) != repr(value) else value
        return value

    def _data_without_secrets(self, data: str) -> str:
        """Remove secrets from the bytes that base64 stands for."""
        from callgate.providers.content_json import decoded, encoded

        found = clean = decoded(data)
        for one in self._secrets:
            for spelled in as_bytes(one):
                clean = clean.replace(spelled, MASK.encode())
        return data if clean == found else encoded(clean)

    def _text_without_secrets(self, text: str) -> str:
        for one in self._secrets:
            if one in text:
                text = text.replace(one, MASK)
        return text

    def error(self, error: BaseException) -> BaseException:
        """Scrub an error, its causes, contexts and notes in place, and return it.

        An error that cannot be changed is replaced by a ``RuntimeError`` with its type name.
        """
        seen: set[int] = set()
        try:
            return self._clean(error, seen) or _stand_in(error)
        except RecursionError:  # thousands of causes, or a value as deep
            return _stand_in(error)

    def _clean(self, error: BaseException, seen: set[int]) -> BaseException | None:
        """Return the scrubbed error, or None when it cannot be changed."""
        if id(error) in seen:
            return error
        seen.add(id(error))
        for link in ("__cause__", "__context__"):
            linked = getattr(error, link)
            if linked is not None and self._clean(linked, seen) is None:
                hidden = error.__suppress_context__
                setattr(error, link, _stand_in(linked))
                error.__suppress_context__ = hidden
        inner = [self._clean(one, seen) for one in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
        if isinstance(error, asyncio.CancelledError):  # a cancel scope recognizes it by its message
            return error
        self._clean_members(error)
        return None if None in inner or self._shows(error) else error

    def _clean_members(self, error: BaseException) -> None:
        error.args = tuple(map(self._member, error.args))
        own = vars(error) if hasattr(error, "__dict__") else {}
        for name, member in list(own.items()):
            if not name.startswith("__"):
                own[name] = self._member(member)
        if notes := own.get("__notes__"):
            own["__notes__"] = [self._member(note) for note in (notes if isinstance(notes, list | tuple) else [notes])]
        if isinstance(error, UnicodeDecodeError):  # the whole text stays there, also where its message has one byte
            if any(self.text(shown) != shown for shown in _as_texts(error.object)):
                error.object = b"*" * len(error.object)
                error.args = tuple(MASK if isinstance(one, bytes) else one for one in error.args)
        elif isinstance(error, UnicodeEncodeError | UnicodeTranslateError) and self.text(error.object) != error.object:
            error.object = "*" * len(error.object)
        for name in (*_MEMBERS, *_slots_of(error)):  # attributes that are not in __dict__, as of built-in exceptions
            member = getattr(error, name, None)
            if isinstance(member, str | bytes) and (clean := self._member(member)) != member:
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(error, name, clean)

    def _member(self, member: object) -> object:
        """Scrub texts, also in containers and dataclasses. Other objects whose repr shows a secret become the mask."""
        if isinstance(member, str):
            return self.text(member)
        if isinstance(member, BaseException) or member is None or isinstance(member, bool | float):
            return member
        try:
            shown = repr(member)
        except Exception:  # noqa: BLE001  (a failing repr shows nothing)
            return member
        return member if self.text(shown) == shown else self._rebuilt(member)

    def _rebuilt(self, member: object) -> object:
        if isinstance(member, dict):
            return {self._member(key): self._member(item) for key, item in member.items()}
        if isinstance(member, list | tuple):
            return [*map(self._member, member)] if isinstance(member, list) else (*map(self._member, member),)
        if dataclasses.is_dataclass(member) and not isinstance(member, type):
            parts = {
                part.name: self._member(getattr(member, part.name)) for part in dataclasses.fields(member) if part.init
            }
            with contextlib.suppress(Exception):
                return dataclasses.replace(member, **parts)
        return MASK

    def _shows(self, error: BaseException) -> bool:
        try:
            shown = f"{error} {error!r}"
        except Exception:  # noqa: BLE001  (a failing repr shows nothing)
            return False
        return self.text(shown) != shown


def _as_texts(data: bytes) -> Iterator[str]:
    """Yield what bytes may stand for: UTF-8, Latin-1, or UTF-16 with its characters."""
    yield data.decode("utf-8", "replace")
    yield data.replace(b"\0", b"").decode("latin-1")


def _slots_of(error: BaseException) -> Iterator[str]:
    for cls in type(error).__mro__:
        slots: str | Iterable[str] = cls.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _stand_in(error: BaseException) -> BaseException:
    """Return the replacement of an error whose text cannot be changed."""
    replacement = RuntimeError(f"{type(error).__name__}: {MASK}")
    replacement.__suppress_context__ = True
    return replacement


CURRENT_SCRUBBER: ContextVar[Scrubber | None] = ContextVar("callgate_scrubber", default=None)
"""The scrubber of the call that is being logged, for the redaction of log events."""
