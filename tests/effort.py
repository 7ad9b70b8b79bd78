"""How hard Hypothesis tries: so many examples in a quick run, ten times as many with `./dev test --thorough`."""

import os

from hypothesis import settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
TIMES = {"default": 1, "thorough": 10}


def register() -> None:
    """Let every test that says nothing of its own try as hard as the profile says."""
    usual = settings().max_examples
    for name, times in TIMES.items():
        # A busy machine is slow now and then: how long an example takes says nothing about whether it is right.
        settings.register_profile(name, deadline=None, max_examples=times * usual)
    settings.load_profile(PROFILE)


def examples(count: int) -> settings:
    """So many examples, for a test whose examples are costly; in the thorough profile ten times as many."""
    return settings(max_examples=TIMES[PROFILE] * count)
