"""The command line: `app.py` registers the commands, one file holds each group of them. `options.py` declares
the options that several share and opens what they name, `chosen.py` says what --policy and --set make of a
policy. `output.py` has exit codes, streams and JSON, `terminal.py` text, tables and progress, `show.py` and
`show_policy.py` what people see; `interrupt.py` Ctrl-C. What takes long to import is imported within the
functions that use it, so that ``--help`` does not wait for it.
"""
