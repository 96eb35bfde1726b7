"""One HTTP request over one connection: addresses, connections, exchange, body and decoding."""
