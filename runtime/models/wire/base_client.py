"""The base of all clients of providers: address, key, connections, and a request with one JSON response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NoReturn, Protocol, Self

from callgate.errors import ModelError, RegistrationError
from callgate.runtime.models.wire.address import Address
from callgate.runtime.models.wire.http_request import HttpRequest
from callgate.runtime.models.wire.keys import Credentials, KeySource, environment_key
from callgate.runtime.models.wire.provider_errors import beginning, parse_json
from callgate.runtime.models.wire.retry_policy import Retries, Timeouts, milliseconds
from callgate.runtime.models.wire.shapes import is_mapping

OWN_CHECKS = ("base_url", "api_key", "http")
"""Settings of clients whose own checks say more than their types."""


class HttpClient(Protocol):
    """An ``AsyncClient`` of httpx or httpx2.

    It is a protocol, so that httpx is loaded with the first client only, and httpx2 only by a caller that uses it.
    """

    @property
    def is_closed(self) -> bool:
        """True once it can send no more requests."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


class BaseClient:
    """Sends requests to one provider, named *provider* in errors. ``Client`` explains the other arguments.

    Raises:
        RegistrationError: no model, no key for the provider's own address, or an invalid key or address; the message
            quotes neither.
    """

    default_url: ClassVar[str]
    key_variables: ClassVar[tuple[str, ...]] = ()
    key_header: ClassVar[str] = "Authorization"
    key_prefix: ClassVar[str] = "Bearer "
    needs_key: ClassVar[bool] = True
    fixed_headers: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        provider: str,
        base_url: str | None,
        model: str,
        api_key: KeySource | None,
        http: HttpClient | None,
        timeout: float | Timeouts | None,
        retries: int | Retries,
        headers: Mapping[str, str] | None,
        insecure: bool,
    ) -> None:
        if not model:
            raise RegistrationError("model is empty; give the name of a model of this provider")
        if api_key is None and base_url is None:
            api_key = environment_key(self.key_variables)
        self.model = model
        self._provider = provider
        self._address = Address.of(self.default_url if base_url is None else base_url)
        self._credentials = Credentials(
            api_key, self.key_header, self.key_prefix, {**self.fixed_headers, **(headers or {})}
        )
        if base_url is None and self.needs_key and not self._credentials.secret:
            raise RegistrationError(f"no API key: pass api_key= or set {' or '.join(self.key_variables)}")
        if self._credentials.secret and not (self._address.encrypted or self._address.local or insecure):
            raise RegistrationError(
                "the API key would go over plain http to another machine: use https, or pass insecure=True"
            )
        from callgate.runtime.models.wire.http import Sender  # with it comes httpx

        self._sender = Sender(provider, http, Timeouts.of(timeout), Retries.of(retries))

    async def aclose(self) -> None:
        """Close the connections; a given ``http`` client stays open."""
        await self._sender.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._address)!r}, model={self.model!r})"

    def __reduce__(self) -> NoReturn:
        self._credentials.__reduce__()

    async def _prepare(self, path: str, body: Mapping[str, object], *, streamed: bool = False) -> HttpRequest:
        """Build the HTTP request, with the current key."""
        headers, scrubber = await self._credentials.headers()
        return HttpRequest.of(self._address.endpoint(path), body, headers, scrubber, streamed=streamed)

    async def _send(self, sent: HttpRequest) -> tuple[Mapping[str, object], int]:
        """Send a request; return the JSON object of the response, and its status.

        Raises:
            ModelError: the request failed, or the response is not a JSON object.
            StreamCut: the response broke off.
        """
        async with self._sender.response(sent) as response:
            body = await response.whole()
        if response.failure is not None:
            raise response.failure.error(self._provider)
        value = parse_json(body)
        if not is_mapping(value):
            reason = f"the response is not a JSON object ({response.media or 'no content type'})"
            raise self._model_error(f"{reason}: {beginning(body, sent.scrubber.text)}", response.status)
        return value, response.status

    def _model_error(self, message: str, status: int | None, retry_after: float | None = None) -> ModelError:
        wait = milliseconds(retry_after)
        return ModelError(f"{self._provider}: {message}", status=status, retry_after=wait, provider=self._provider)
