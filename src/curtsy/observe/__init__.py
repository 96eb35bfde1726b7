"""Watching it work: statistics, alerts, metrics, and the dashboard."""
