"""The base address of a provider's API, checked once, and the endpoints below it. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from callgate.errors import RegistrationError
from callgate.providers.redaction import Redactor

_is_secret = Redactor(["subscriptionkey"]).is_secret
_SECRETS = frozenset({"key", "sig", "code", "auth"})
_REFUSED = re.compile(r"[\x00-\x20\x7f\\]")


@dataclass(frozen=True, slots=True)
class Address:
    """A base address; ``str()`` leaves out its query string, which may hold a secret."""

    origin: str
    path: str
    query: str = field(repr=False)
    host: str
    encrypted: bool

    @classmethod
    def of(cls, text: str) -> Address:
        """Parse a base address.

        Raises:
            RegistrationError: a client must not use this address; the message does not quote it.
        """
        try:
            parts = urlsplit(text)
            host, port = parts.hostname or "", parts.port
        except (ValueError, AttributeError, TypeError):
            host, port, parts = "", None, urlsplit("")
        if parts.scheme not in ("http", "https") or not host or _REFUSED.search(text):
            raise RegistrationError("base_url is not an http or https address")
        if "@" in parts.netloc:
            raise RegistrationError("base_url contains a user or a password: use api_key= or headers= instead")
        if parts.fragment:
            raise RegistrationError("base_url contains a fragment, which is never sent: remove it")
        if any(name.lower() in _SECRETS or _is_secret(name) for name, _ in parse_qsl(parts.query)):
            raise RegistrationError(
                "base_url contains a secret in its query string, which is logged: use api_key= or headers="
            )
        shown = f"[{host}]" if ":" in host else host
        origin = f"{parts.scheme}://{shown}{'' if port is None else f':{port}'}"
        return cls(origin, parts.path.rstrip("/"), parts.query, host, parts.scheme == "https")

    @property
    def local(self) -> bool:
        """True for this machine: a loopback address, or ``localhost``."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost" or self.host.endswith(".localhost")

    def endpoint(self, path: str) -> str:
        """The address of an endpoint; the base's query string comes before the endpoint's."""
        path, _, query = path.partition("?")
        query = "&".join(filter(None, [self.query, query]))
        return f"{self.origin}{self.path}/{path}{query and f'?{query}'}"

    def __str__(self) -> str:
        return f"{self.origin}{self.path}"
