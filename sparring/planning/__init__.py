"""The plan of a run before it starts: memory, settings that fit, time and money. docs/planning.md states the formulas."""
