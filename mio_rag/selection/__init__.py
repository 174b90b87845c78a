"""One question, one selection: settings and candidates become a program, the program a certified result,
and the result a selection with reasons.
"""
