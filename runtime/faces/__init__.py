"""The interfaces of a gate: for one user, for synchronous hosts, and read-only; and the options of a gate."""
