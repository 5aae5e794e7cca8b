"""A self-contained HTML page about a run, built only from its folder: verdict, findings, curves, tasks, budgets, cost
and episodes."""

from sparring.report.page import Report, write_report

__all__ = ["Report", "write_report"]
