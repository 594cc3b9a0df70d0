"""Kubernetes' quantities."""

import pytest

from aiperf_svc.adapters.cluster.api.quantities import format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("250m", 0.25), ("2", 2), ("1.5", 1.5), ("2Gi", 2**31), ("1e3", 1000), ("5k", 5000),
        ("100n", 1e-7), ("1E", 1e18), ("24627896Ki", 24_627_896 * 1024), (3, 3),
    ],
)  # fmt: skip
def test_a_quantity_is_its_number_of_base_units(text: str, value: float) -> None:
    assert parse_quantity(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "one", "1KiB"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no Kubernetes quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("value", "resource", "text"),
    [
        (0.25, "requests.cpu", "250m"), (2, "cpu", "2"), (1.5 * 2**30, "memory", "1.5Gi"),
        (5 * 2**20, "limits.memory", "5Mi"), (3, "pods", "3"), (0, "memory", "0"),
    ],
)  # fmt: skip
def test_a_quantity_is_said_as_people_write_it(value: float, resource: str, text: str) -> None:
    assert format_quantity(value, resource) == text
