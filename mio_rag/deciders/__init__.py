"""The decisions of a question, as pure functions: steps, searches, depth, repetition and price.

A decider reads the state of a question and the actions proposed so far, and returns actions. It asks no
model, searches for nothing and keeps nothing. A row of deciders is a policy.
"""
