"""The page cache: entries as files or in one packed file."""
