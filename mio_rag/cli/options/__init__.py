"""Groups of options that several commands share, and what they make of them; options in TOML files."""
