"""Reading of pages: markup, links, sitemaps, scope and text."""
