"""The queue of a crawl: URLs that wait to be fetched, by host."""
