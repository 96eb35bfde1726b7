"""Read a page: markup, links, sitemaps, scope and text."""
