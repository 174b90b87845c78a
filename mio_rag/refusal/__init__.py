"""Questions that the passages do not answer: how probable that is, when to refuse, and how well that goes."""
