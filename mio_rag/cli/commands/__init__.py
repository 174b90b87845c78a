"""One file for each command, or for each group of commands; what two of them need stands in `options`."""
