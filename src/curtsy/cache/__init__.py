"""Page cache: entries in separate files or in one packed file."""
