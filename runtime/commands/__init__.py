"""The commands of ``python -m callgate``."""
