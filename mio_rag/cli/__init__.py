"""The command line: `app.py` registers the commands, one file holds each group of them with its tables.

`options.py` declares the options that several share and opens what they name, `chosen.py` says what --policy
and --set make of a policy. `output.py` has exit codes, streams and JSON, `terminal.py` text, tables and
progress, `show.py` selections and sessions, `interrupt.py` Ctrl-C. What `select`, `ask`, `index` and `serve`
need is imported within their functions, so that their --help does not wait for it.
"""
