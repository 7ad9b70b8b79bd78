"""What holds for all tests: how hard Hypothesis tries, see `effort`."""

import effort

effort.register()
