"""The rules, a file for each subject: what may be wrong, and how a finding reports it."""
