"""Decision logic: pure functions on values, without clock, randomness, socket, file or logger."""
