"""A run as one page for people, from its folder alone: verdict, findings, curves, tasks, budgets, cost, and every word of its
episodes."""

from sparring.report.page import Report, write_report

__all__ = ["Report", "write_report"]
