"""What `benchmarks/crawl.py` needs: a site that keeps the score, and the crawlers that visit it."""
