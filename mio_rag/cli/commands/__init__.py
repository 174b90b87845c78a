"""One file for each command, or for each group of commands."""
