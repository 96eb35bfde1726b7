"""Fetch the web politely."""

__version__ = "0.1.0"
