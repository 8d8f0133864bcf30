"""Stores for data that outlives a call: in memory, in SQL, in Redis."""
