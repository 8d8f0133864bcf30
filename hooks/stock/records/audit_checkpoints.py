"""Signed checkpoints of an audit log: statements that rows were verified or removed."""

from __future__ import annotations

from callgate.hooks.stock.records.audit_chain import micros
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import AuditCheckpoint, CheckpointKind


def signed_checkpoint(
    keys: SigningKeys, kind: CheckpointKind, segment: str, number: int, hash: str, at: float
) -> AuditCheckpoint:
    """Sign a checkpoint of the rows of a segment up to a number."""
    return AuditCheckpoint(kind, segment, number, hash, at, keys.sign(*_parts(kind, segment, number, hash, at)))


def is_signed(keys: SigningKeys, one: AuditCheckpoint) -> bool:
    """Return True when one of the keys signed the checkpoint."""
    return keys.verify(one.mac, *_parts(one.kind, one.segment, one.number, one.hash, one.at))


def _parts(kind: CheckpointKind, segment: str, number: int, hash: str, at: float) -> tuple[bytes, ...]:
    texts = ("callgate audit checkpoint", kind.value, segment, str(number), hash, str(micros(at)))
    return tuple(text.encode("utf-8", "surrogatepass") for text in texts)
