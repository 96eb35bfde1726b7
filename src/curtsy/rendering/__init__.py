"""Rendering of pages that need JavaScript: by `chromium` (extra `render`), each page by a `visit`."""
