"""Reproduction of stored runs: replay episodes, repeat updates, and branch runs."""
