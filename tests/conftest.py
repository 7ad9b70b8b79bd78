"""How hard Hypothesis tries: HYPOTHESIS_PROFILE=thorough, or ./dev test --thorough, has ten times the examples."""

import os

from hypothesis import settings

# A busy machine is slow now and then: how long an example takes says nothing about whether it is right.
settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=10 * settings().max_examples)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
