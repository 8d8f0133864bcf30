"""A refund desk: one person requests, another approves, the refund runs once: ``python -m examples.approval_desk``."""
