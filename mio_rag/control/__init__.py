"""Controllers: how often, and how deep, the road from question to answer is walked."""
