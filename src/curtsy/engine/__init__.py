"""Execution of flows: gate, timers, driver, downloads and counters."""
