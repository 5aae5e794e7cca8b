"""Environments in which a small model learns to hack its reward, and healthy runs, which measure the detectors."""
