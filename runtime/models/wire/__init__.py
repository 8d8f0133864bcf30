"""Parts that the wires share: the codec protocol, schema views, wire names, the neutral format, HTTP clients."""
