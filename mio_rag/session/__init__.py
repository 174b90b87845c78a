"""One question from its text to its answer: one loop, one budget, one trace.

Deciders propose actions, tools carry them out, a budget pays, a trace records. `loop.py` has the loop.
"""
