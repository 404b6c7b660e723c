"""How many descriptors a process may have."""

from __future__ import annotations

import resource
import subprocess
import sys

from srl.launch.process.descriptors import ENOUGH


def test_a_lowered_limit_is_raised_to_what_the_system_allows() -> None:
    code = (
        "import resource\n"
        "from srl.launch.process.descriptors import raise_descriptor_limit\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "raise_descriptor_limit()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    soft, hard = map(int, done.stdout.split())
    assert hard == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert soft == (ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH))
