"""The record of one hydration attempt, with secrets masked: an application can keep it."""

from __future__ import annotations

import orjson

from callgate.providers.redaction import Redactor
from callgate.tools.arguments.hydrated import HydrationError, HydrationResult, Repair
from callgate.tools.calls import Issue

_REDACT = Redactor(ids=frozenset({"call_id", "definition", "validator", "raw_sha256", "effective_sha256"}))


def attempt_record(found: HydrationResult, at: float) -> dict[str, object]:
    """Return one attempt as plain JSON, with secrets in the payload and in both arguments of a repair masked.

    *at* is its time, in seconds since the epoch. The detectors of the logs mask. They do not find every secret, so keep the records like logs with personal data.
    """
    seen = found.provenance
    return _REDACT.event(
        None,
        "",
        {
            "at": at,
            "tool": seen.provider_tool_id,
            "call_id": seen.provider_call_id,
            "wire": seen.wire,
            "success": found.success,
            "payload": readable(seen.original_raw_args if seen.repaired or seen.parsed is None else seen.parsed),
            "rules": seen.rules,
            "raw_sha256": seen.raw_sha256,
            "effective_sha256": seen.effective_sha256,
            "definition": seen.definition,
            "validator": None if seen.validator is None else seen.validator.id,
            "validated": seen.is_validated,
            "no_schema_mode": seen.no_schema_mode,
            "errors": [_error(error) for error in found.errors],
            "repaired": seen.repaired,
            "repair": None if seen.repair is None else _repair(seen.repair),
        },
    )


def readable(value: object) -> object:
    """Parse JSON text, so that members are masked by their names."""
    if not isinstance(value, str | bytes | bytearray):
        return value
    text = value if isinstance(value, str) else bytes(value).decode(errors="backslashreplace")
    try:
        return orjson.loads(text)
    except ValueError:
        return text


def _error(error: HydrationError) -> dict[str, object]:
    if not isinstance(error.detail, list | tuple):
        return {"stage": error.stage, "message": error.message, "detail": error.detail}
    issues = [[one.pointer, one.keyword, one.expected] for one in error.detail if isinstance(one, Issue)]
    return {"stage": error.stage, "message": error.message, "issues": issues}


def _repair(repair: Repair) -> dict[str, object]:
    return {
        "by": repair.by,
        "at": repair.at,
        "reason": _error(repair.reason),
        "before": readable(repair.before),
        "after": readable(repair.after),
        "failed": repair.failed,
    }
