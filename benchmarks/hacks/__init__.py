"""Environments in which a small model learns to hack its reward, and healthy runs. Both measure the detectors."""
