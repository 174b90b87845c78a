"""What the command line prints for people, and as JSON where a result does not do so itself. Nothing here
knows a command or an option.
"""
