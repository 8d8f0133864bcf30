"""Where hooks keep what outlives a call: in memory, in SQL, in Redis."""
