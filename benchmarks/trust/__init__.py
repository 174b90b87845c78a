"""Is every certificate of the exact kernel true? See `command`."""
