"""The commands of ``callgate``."""
