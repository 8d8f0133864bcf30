"""The schema of the SQL stores, step by step; ``SqlStore.open`` takes the steps that are missing."""
