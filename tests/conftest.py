"""For all tests: how long an example of Hypothesis takes says nothing on a machine that does other things too.

The examples are the same in every run, so that none fails by chance; with $CURTSY_EXAMPLES there are new ones.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("curtsy", deadline=None, derandomize="CURTSY_EXAMPLES" not in os.environ)
settings.load_profile("curtsy")
