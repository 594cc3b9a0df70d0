"""Values of one run are passed from the runner to a service."""

from dataclasses import fields
from typing import Any

import pytest

from aiperf_svc.plan.run_values import RunValues


@pytest.mark.parametrize("name", [each.name for each in fields(RunValues)])
def test_each_value_survives_the_environment(name: str) -> None:
    chosen: Any = True if name.startswith("is_") else "a value"
    values = RunValues(**{name: chosen})
    environ = values.environment()
    assert len(environ) == 1
    assert RunValues.read(environ | {"HOME": "/home/me"}) == values


def test_defaults_have_no_variables() -> None:
    assert RunValues().environment() == {}
    assert RunValues.read({}) == RunValues()


def test_each_member_has_a_bucket_folder() -> None:
    assert RunValues().bucket_folder("run") == "run"
    assert RunValues(member="eu").bucket_folder("run") == "eu/run"
    assert RunValues(member="eu", upload_into="eu/trials").bucket_folder("run") == "eu/trials"
