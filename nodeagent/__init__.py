"""The node agent: acts on one node, decides nothing that the plan did not say."""

__version__ = "0.1.0"
