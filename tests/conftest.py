"""For all tests: how long an example of Hypothesis takes says nothing on a machine that does other things too."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("curtsy", deadline=None)
settings.load_profile("curtsy")
