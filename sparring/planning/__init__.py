"""Plan a run before it starts: memory, settings that fit, time and cost. docs/planning.md states the formulas."""
