"""The command line: `app.py` registers the commands, `commands/` holds one file for each, `options/` what
several of them share, `show/` what they print. `output.py` knows exit codes and JSON, `streams.py`,
`terminal.py` and `interrupt.py` know encodings, broken pipes and Ctrl-C.
"""
