"""Probes: what is measured on the live system, from the controller or through an agent."""
