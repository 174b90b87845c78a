"""Evaluation: measures, compared methods, the harness with its ledger, paired statistics, the report."""
