"""A policy as TOML: its tables, the names and keys that change it, and the files that it names."""

from mio_rag.policy.policy import DECISIONS, FILES, PRESETS, Policy, policy_of, preset_text, presets_like

__all__ = ["DECISIONS", "FILES", "PRESETS", "Policy", "policy_of", "preset_text", "presets_like"]
