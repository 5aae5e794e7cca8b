"""Environments in which a small model learns to hack its reward, and runs in which it does not: do the detectors tell?"""
