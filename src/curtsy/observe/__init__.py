"""Observation: statistics, alerts, metrics and the dashboard."""
