"""Asynchronous training compared with synchronous training where tools are slow."""
