"""Export of the audit log to an OTLP endpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from callgate.errors import StoreError
from callgate.providers.http.post import post_bounded
from callgate.providers.stores.base import AuditRow


class AuditOtlp:
    """A delivery to an OTLP endpoint for logs, with HTTP and JSON: the OpenTelemetry collector, or a SIEM that takes OTLP.

    The body of a log record is the row's body as JSON. Tenant, segment, number and hashes are attributes.

    Args:
        endpoint: the URL, such as ``http://localhost:4318/v1/logs``.
        headers: HTTP headers, such as an authorization.
        service: the attribute ``service.name`` of the resource.
        timeout: seconds for one request and its whole answer, of which at most 64 kB are read.
        client: an ``httpx.AsyncClient`` of the application; without it each delivery has its own.
    """

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str] | None = None,
        *,
        service: str = "callgate",
        timeout: float = 30.0,
        client: object = None,
    ) -> None:
        self._endpoint = endpoint
        self._headers = dict(headers or {})
        self._service = service
        self._timeout = timeout
        self._client = client

    async def __call__(self, rows: Sequence[tuple[str, AuditRow]]) -> None:
        """Send rows in one request.

        Raises:
            StoreError: the endpoint cannot be reached, did not answer in time, or did not accept every row.
        """
        records = {"scope": {"name": "callgate.audit"}, "logRecords": [_record(*one) for one in rows]}
        resource = {"attributes": [_attribute("service.name", self._service)]}
        content = json.dumps({"resourceLogs": [{"resource": resource, "scopeLogs": [records]}]}, default=dict)
        headers = {"content-type": "application/json", **self._headers}
        answer = await post_bounded("the OTLP endpoint", self._endpoint, content, headers, self._timeout, self._client)
        if answer.status != 200:
            raise StoreError(f"the OTLP endpoint answered with status {answer.status}")
        if rejected := _rejected(answer.body):
            raise StoreError(f"the OTLP endpoint rejected {rejected} of {len(rows)} audit rows")


def _rejected(answer: bytes) -> int:
    """Return the number of rejected records in a response; an empty response is a full success."""
    try:
        return int(json.loads(answer or b"{}").get("partialSuccess", {}).get("rejectedLogRecords", 0))
    except (ValueError, AttributeError, TypeError):
        raise StoreError("the OTLP endpoint sent no valid response") from None


def _record(tenant: str, row: AuditRow) -> dict[str, object]:
    shown: dict[str, str | int] = {
        "tenant": tenant,
        "segment": row.segment,
        "number": row.number,
        "hash": row.hash,
        "previous": row.previous,
    }
    shown |= {name: text for name in ("kind", "tool", "outcome") if isinstance(text := row.body.get(name), str)}
    return {
        "timeUnixNano": str(round(row.at * 1_000_000) * 1_000),
        "severityNumber": 9,
        "severityText": "INFO",
        "eventName": "callgate.audit.row",
        "body": {"stringValue": json.dumps(row.body, separators=(",", ":"), default=dict)},
        "attributes": [_attribute(f"callgate.audit.{name}", value) for name, value in shown.items()],
    }


def _attribute(name: str, value: str | int) -> dict[str, object]:
    kind = "intValue" if isinstance(value, int) else "stringValue"
    return {"key": name, "value": {kind: str(value)}}
