"""API keys and secret headers. Neither is ever shown."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NoReturn, TypeAlias

from callgate.errors import ModelError, RegistrationError
from callgate.providers.redaction import Redactor
from callgate.providers.scrubbing import Scrubber
from callgate.providers.spellings import SHORTEST_SECRET, spellings

KeySource: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""An API key, or a function that returns the current key; it is called for each request, and may be async."""

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_is_secret = Redactor(["apikey", "key", "auth", "sig"]).is_secret


class Credentials:
    """The key and the additional headers of one client. Its repr hides both; it cannot be pickled or copied.

    Raises:
        RegistrationError: the key or a header cannot be sent as it is; the message does not quote it.
    """

    __slots__ = ("_extra", "_header", "_key", "_prefix")

    def __init__(self, key: KeySource | None, header: str, prefix: str, extra: Mapping[str, str]) -> None:
        self._key, self._header, self._prefix = key, header.lower(), prefix
        self._extra = {name.lower(): value for name, value in extra.items()}
        if isinstance(key, str) and (problem := _problem(key)):
            raise RegistrationError(f"the API key {problem}")
        if key is not None and not isinstance(key, str) and not callable(key):
            raise RegistrationError(f"api_key must be a text or a function that returns one, not {type(key).__name__}")
        for name, value in extra.items():
            if not _NAME.fullmatch(name) or not isinstance(value, str) or _problem(value, "\t "):
                raise RegistrationError(f"the header {name!r:.80} cannot be sent as it is")

    @property
    def secret(self) -> bool:
        """True if there is a key, also in a header of another name."""
        return self._key is not None or any(map(_is_secret, self._extra))

    async def headers(self) -> tuple[dict[str, str], Scrubber]:
        """The current headers, with names in lower case, and a scrubber that removes their secrets from a text.

        Raises:
            ModelError: the function returned an invalid key.
        """
        key = self._key
        if key is not None and not isinstance(key, str):
            made: object = key()
            made = await made if inspect.isawaitable(made) else made
            key = made if isinstance(made, str) else ""
            problem = _problem(key) if key is made else f"is a {type(made).__name__}, not a text"
            if problem:
                raise ModelError(f"the function given as api_key returned an invalid key: it {problem}")
        sent = {} if key is None else {self._header: f"{self._prefix}{key}"}
        secrets = [value for name, value in self._extra.items() if _is_secret(name)]
        secrets += [word for value in secrets for word in value.split()]
        scrubber = Scrubber()
        for one in [key or "", *secrets]:
            if len(one) >= SHORTEST_SECRET:
                scrubber.add_secrets(spellings(one))
        return {**sent, **self._extra}, scrubber

    def __repr__(self) -> str:
        return f"<credentials: {'a key' if self.secret else 'no key'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client holds an API key and cannot be copied or pickled: make a client where you need it")


def environment_key(names: Iterable[str]) -> str | None:
    """The value of the first of these environment variables that is not empty."""
    return next((value for value in map(os.environ.get, names) if value), None)


def _problem(text: str, allowed: str = "") -> str | None:
    """The reason why a text cannot be the value of a header, without quoting it."""
    if not text.strip():
        return "is empty"
    if not text.isascii():
        return "contains characters that are not ASCII"
    if any(not "!" <= character <= "~" and character not in allowed for character in text):
        return "contains a line break, a blank or a control character"
    return None
