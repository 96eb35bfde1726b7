"""What decides: pure functions on values. No clock, no dice, no socket, no file, no logger."""
