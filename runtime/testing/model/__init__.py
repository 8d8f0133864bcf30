"""The scripted model: a real HTTP server that speaks the five wires, independent of Callgate's own codecs."""
