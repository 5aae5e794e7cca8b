"""Plan a run before it starts: its memory, the settings that fit, its time and its cost. docs/planning.md states the
formulas."""
