"""What an agent is told about itself."""

from __future__ import annotations

import pytest

from srl.errors import ConfigError
from srl.launch.cluster.host_agent import split_bind


@pytest.mark.parametrize(
    ("bind", "found"),
    [("", ("", 0)), ("10.0.0.2", ("10.0.0.2", 0)), ("10.0.0.2:5556", ("10.0.0.2", 5556))],
)
def test_an_address_may_have_a_port(bind: str, found: tuple[str, int]) -> None:
    assert split_bind(bind) == found


@pytest.mark.parametrize("bind", ["*", "0.0.0.0:55", ":55", "10.0.0.2:", "a:b", "a:0", "a:65536"])
def test_what_is_no_address_of_one_machine_is_refused(bind: str) -> None:
    with pytest.raises(ConfigError, match=r"--bind: expected one address of this machine"):
        split_bind(bind)
