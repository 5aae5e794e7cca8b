"""Reproduction of stored runs: replayed episodes, repeated updates, and branched runs."""
