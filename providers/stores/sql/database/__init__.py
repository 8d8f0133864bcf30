"""Access to a database: addresses, engines, connections, transactions and statements."""
