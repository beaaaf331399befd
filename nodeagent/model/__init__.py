"""Pure data: specs, targets, steps, facts, events and the contract of a fault kind."""
