"""How much does a question need? Tiers of depth, context and answer, and routers that choose one of them."""
