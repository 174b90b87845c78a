"""Random and mutated inputs at every door of the product; every one must end well."""
