"""What the clients of providers do alike, whatever they ask for: address, key, connections, an answer in one piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, Protocol, Self

from callgate.errors import ModelError, RegistrationError
from callgate.runtime.models.wire.address import Address
from callgate.runtime.models.wire.http_request import Outgoing
from callgate.runtime.models.wire.keys import Credentials, KeySource, environment_key
from callgate.runtime.models.wire.provider_errors import parsed
from callgate.runtime.models.wire.retry_policy import Retries, Timeouts
from callgate.runtime.models.wire.shapes import is_mapping


class HttpClient(Protocol):
    """An ``httpx.AsyncClient``, named by its shape: httpx is loaded when a client is made, not before."""

    @property
    def is_closed(self) -> bool:
        """Whether it can send no more."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


class BaseClient:
    """Sends requests to one provider, which errors call *provider*; ``Client`` says what the other arguments mean.

    Raises:
        RegistrationError: no key for the provider's own address, a key or an address that cannot be used; the message
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
        if api_key is None and base_url is None:
            api_key = environment_key(self.key_variables)
        self.model = model
        self._provider = provider
        self._address = Address.of(self.default_url if base_url is None else base_url)
        self._credentials = Credentials(
            api_key, self.key_header, self.key_prefix, {**self.fixed_headers, **(headers or {})}
        )
        if base_url is None and self.needs_key and not self._credentials.secret:
            raise RegistrationError(f"no API key: give api_key= or set {' or '.join(self.key_variables)}")
        if self._credentials.secret and not (self._address.encrypted or self._address.local or insecure):
            raise RegistrationError("a key over plain http to another machine: use https, or say insecure=True")
        from callgate.runtime.models.wire.http import Sender  # with it comes httpx

        self._sender = Sender(provider, http, Timeouts.of(timeout), Retries.of(retries))

    async def aclose(self) -> None:
        """Close the connections; an ``http`` that was given is left open."""
        await self._sender.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._address)!r}, model={self.model!r})"

    def __reduce__(self) -> NoReturn:
        self._credentials.__reduce__()

    async def _prepared(self, path: str, body: Mapping[str, Any], *, streamed: bool = False) -> Outgoing:
        """A request as it goes out, with the key to use now."""
        headers, scrubber = await self._credentials.headers()
        return Outgoing.of(self._address.endpoint(path), body, headers, scrubber, streamed=streamed)

    async def _answered(self, sent: Outgoing) -> tuple[Mapping[str, Any], int]:
        """The JSON object that answers a request, and the status it came with.

        Raises:
            ModelError: there is none.
        """
        async with self._sender.answer(sent) as answer:
            body = await answer.whole()
        if answer.failure is not None:
            raise self._failed(answer.failure.message, answer.status)
        value = parsed(body)
        if not is_mapping(value):
            raise self._failed(f"its answer is no JSON object ({answer.media or 'no content type'})", answer.status)
        return value, answer.status

    def _failed(self, message: str, status: int | None) -> ModelError:
        return ModelError(f"{self._provider}: {message}", status=status, provider=self._provider)
