"""All controllers under one policy: one price, one ledger, one trace.

`parts.py` and `policy.py` say who decides what, `read.py` reads it from TOML, `states.py` opens what was
learned, `controller.py` runs it on a question.
"""
