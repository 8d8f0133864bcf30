"""What several wires share: the codec protocol, schema views, names, the neutral format (design 10.11)."""
