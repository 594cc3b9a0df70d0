"""The causes of a failure in the output of Pulumi."""

import pytest

from aiperf_svc.adapters.pulumi.error_text import MAX_LENGTH, causes, causes_in, in_few_lines

DEPLOYMENT = (
    '5 errors occurred:\n\t* resource "urn:pulumi:s::aiperf::kubernetes:apps/v1:Deployment::w" '
    "was successfully created, but the Kubernetes API server reported that it failed to fully "
    "initialize or become live: 'worker-s' timed out waiting to be Ready\n"
    "\t* [MinimumReplicasUnavailable] Deployment does not have minimum availability.\n"
    "\t* Minimum number of live Pods was not attained\n"
    "\t* [Pod n/worker-s-1]: containers with unready status: [worker][ErrImagePull] not found\n\n\n"
)
WHY = (
    "'worker-s' timed out waiting to be Ready: [Pod n/worker-s-1]: containers with unready status: "
    "[worker][ErrImagePull] not found"
)
PROGRESS = """
Updating (bench):

@ updating....
 +  kubernetes:core/v1:Secret keys creating (0s)
 +  kubernetes:core/v1:Secret keys created (0.02s) error in no line of this
 +  kubernetes:apps/v1:Deployment worker **creating failed** error: the quota
Diagnostics:
  pulumi:pulumi:Stack (aiperf-svc-bench):
    error: update failed
Resources:
    + 3 created
Duration: 4s
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (DEPLOYMENT, (WHY,)),
        ("error: update failed", ()),
        ("update failed\n", ()),
        ("<{%reset%}>error: no such host<{%reset%}>", ("no such host",)),
        (
            "resource team/worker-s was not successfully created by the Kubernetes API server : "
            'deployments.apps "worker-s" is forbidden:\n exceeded quota',
            ('deployments.apps "worker-s" is forbidden: exceeded quota',),
        ),
        (
            "Program failed with an unhandled exception:\nTraceback (most recent call last):\n"
            '  File "x.py", line 1\nvalueError: no such thing\n',
            ("valueError: no such thing",),
        ),
    ],
    ids=[
        "a Deployment",
        "a summary",
        "another",
        "colours",
        "the provider's words",
        "a program's exception",
    ],
)
def test_message_is_reduced_to_its_cause(message: str, expected: tuple[str, ...]) -> None:
    assert causes([message]) == expected


def test_progress_lines_are_not_causes() -> None:
    assert causes_in(PROGRESS) == ()
    assert causes_in(f"{PROGRESS}\nerror: no plugin\nerror: no plugin") == ("no plugin",)
    nested = "\n".join(f"    {line}" for line in f"error: {DEPLOYMENT}".splitlines())
    heading = "  kubernetes:apps/v1:Deployment (worker):"
    assert causes_in(f"{PROGRESS}{heading}\n{nested}\nResources:\n    2 errored\n") == (WHY,)
    assert causes_in("warning: old\nfirst\nsecond") == ("first", "second")
    assert causes_in("warning: an old plugin\nerror: no such thing\n    2 errored") == (
        "no such thing 2 errored",
    )


def test_causes_are_short_and_few() -> None:
    (cut,) = causes(["x" * 1000])
    assert cut == f"{'x' * MAX_LENGTH} […]"
    assert in_few_lines(("a", "b", "c", "d", "e")) == "a\n  b\n  c\n  and 2 more"
    assert in_few_lines(("a",)) == "a"
    assert in_few_lines(()) == "no reason given"
