"""One call: the lifecycle, its leases, deadlines and results."""
