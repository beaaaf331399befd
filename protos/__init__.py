"""The agent's interface and its generated stubs (make protos)."""
