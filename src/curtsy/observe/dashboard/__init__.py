"""Dashboard: a live page of the store's data, with actions for the user.

`board.py` reads the store, `views.py` converts it to JSON, `stream.py` sends changes, `security.py` controls access,
`app.py` has the routes and the user's actions. `static/` holds the page: one file each of HTML, CSS and
JavaScript, without a build step.
"""
