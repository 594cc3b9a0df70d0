"""The Pulumi program: the stack's configuration becomes one component, its outputs the stack's.

Decisions are made by `aiperf_svc.plan`, which does not depend on Pulumi; the components in
`aiperf_svc.stack` translate them into Kubernetes objects.
"""

from aiperf_svc.stack import declare_stack

declare_stack()
