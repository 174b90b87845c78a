"""A policy over many questions: each answered once and charged once, whatever dies on the way."""
