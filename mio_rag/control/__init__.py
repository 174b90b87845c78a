"""Controllers: decide step by step whether to retrieve, reason or answer."""
