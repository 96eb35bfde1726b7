"""Many pages: what waits to be fetched, what is found on a page, and the loop between the two."""
