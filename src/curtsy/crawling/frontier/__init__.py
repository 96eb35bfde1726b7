"""Queue of a crawl: URLs to fetch, by host."""
