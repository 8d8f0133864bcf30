"""The settings that an application gives a gate, and the interface of its job engine."""
