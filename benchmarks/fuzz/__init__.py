"""Random and mutated inputs to public interfaces: each must give a valid result or a clear error."""
