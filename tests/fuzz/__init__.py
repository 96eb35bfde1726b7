"""Coverage-guided fuzzing of everything that reads what a site sends: `make fuzz`."""
