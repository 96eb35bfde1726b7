"""The dashboard: a page that shows what the store knows while it changes, and from which hands may intervene.

`board.py` reads the store, `views.py` makes JSON of it, `stream.py` sends what has changed, `actions.py` is what hands
may do, `security.py` who may ask at all, `app.py` puts them together. `static/` is the page: one file each of HTML,
CSS and JavaScript, as they are.
"""
