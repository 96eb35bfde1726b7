"""One request on one connection: addresses, connections, exchange, body and decoding."""
