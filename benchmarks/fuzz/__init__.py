"""Random and mutated inputs to every public interface: each must give a valid result or a clear error."""
