"""A run's folder, its stored files and its history."""

from sparring.run_folders.run_folder import RunFolder, list_runs

__all__ = ["RunFolder", "list_runs"]
