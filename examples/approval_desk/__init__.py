"""A desk where refunds are asked for, approved by somebody else, and run once: ``python -m examples.approval_desk``."""
