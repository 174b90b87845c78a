"""How to search for a question: by fixed strategies, or by a contextual bandit that learns what each adds."""
