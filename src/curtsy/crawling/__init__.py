"""Crawling of many pages: the queue of URLs, page parsing, and the loop between them."""
