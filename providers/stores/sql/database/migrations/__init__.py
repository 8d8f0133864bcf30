"""The schema of the SQL stores as migrations; ``SqlStore.open`` runs those that are missing."""
