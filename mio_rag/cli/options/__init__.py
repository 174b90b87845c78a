"""Groups of options that commands share, and what they make of them: a selector, settings of controllers.
`config.py` takes options from a TOML file. Nothing here knows a command.
"""
