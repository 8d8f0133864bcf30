"""Tools for testing hooks, tools and providers. Import them from ``callgate.testing``."""
