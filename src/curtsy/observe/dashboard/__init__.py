"""Dashboard: a live page of the store's data, with actions for the user.

`board.py` reads the store, `views.py` converts it to JSON, `stream.py` sends changes, `security.py` controls access,
`app.py` has the routes and the user's actions. `static/` holds the page: HTML, CSS, and
JavaScript without a build step, in which `plots.js` draws the history, and `basics.js` has what both scripts use.
"""
