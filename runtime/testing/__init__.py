"""What users test their own hooks and tools with; the public face of it is ``callgate.testing``."""
