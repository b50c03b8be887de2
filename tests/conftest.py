"""Settings shared by all tests."""

import os

from hypothesis import settings

# The first example of a test may compile a kernel, so no example has a deadline.
settings.register_profile("wellorder", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("wellorder")
