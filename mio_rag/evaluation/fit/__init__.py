"""Settings from labelled questions: a relevance model, a nested search with held-out questions, the goal
that is searched for.
"""
