"""The rules, one file per subject. Each rule defines what may be wrong, and how a finding reports it."""
