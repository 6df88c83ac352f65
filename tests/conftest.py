"""What every test shares: the Hypothesis profiles.

Both profiles are deterministic: the same code draws the same examples on every machine,
so a red run can be repeated. `default` is small, for a run after every edit; `ci` looks
further and is chosen by `HYPOTHESIS_PROFILE=ci`.
"""

import os

from hypothesis import HealthCheck, settings

# A deadline in milliseconds measures the machine, not the code.
settings.register_profile(
    "default",
    derandomize=True,
    deadline=None,
    max_examples=50,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "ci",
    parent=settings.get_profile("default"),
    max_examples=300,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
