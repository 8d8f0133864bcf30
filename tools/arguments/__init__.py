"""From raw arguments to validated ones: parsing, tolerance, hydration, conversion."""
