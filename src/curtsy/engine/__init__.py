"""Carry out a flow: gate, timers, driver, downloads and counters."""
