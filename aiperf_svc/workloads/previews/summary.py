"""Describes a stack for its reviewers, on a terminal and in a pull request. Pure."""

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial

from aiperf_svc.config.units import format_cpu, format_duration, format_size
from aiperf_svc.domain.number_text import cores, count, gibibytes, significant
from aiperf_svc.plan.footprint import LIMITS
from aiperf_svc.plan.pods import PodPlan
from aiperf_svc.plan.release import name_of
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.previews.changes import StackChanges
from aiperf_svc.workloads.previews.review import facts, whole_cost
from aiperf_svc.workloads.registry import workload_of

WIDTH, INDENT = 100, 18
"""Width of the text for a terminal, and of a row's name in it."""
FEW = 40
"""Maximum changed keys shown; with more, it is a different benchmark."""
_wrapped = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)


def title(plan: StackPlan) -> str:
    """Return the name of the stack and of the measured system."""
    parts = [plan.identity.stack, workload_of(plan.config).subject(plan.config)]
    parts += [count(plan.ranks.replicas, "rank")] if plan.ranks is not None else []
    return " · ".join(parts)


def _subject_rows(plan: StackPlan) -> list[tuple[str, str]]:
    return workload_of(plan.config).preview(plan, plan.config)


def totals_line(plan: StackPlan) -> str:
    """Return the resources that the stack requests from the cluster."""
    totals = plan.totals
    parts = [
        count(totals.pods, "pod"),
        f"{cores(totals.cpu_millis)} CPU",
        f"{gibibytes(totals.memory_bytes)} memory",
        count(totals.gpus, "GPU"),
    ]
    if totals.cost_per_hour:
        parts.append(f"{totals.cost_per_hour:g} {totals.currency} an hour")
    return ", ".join(parts)


def footprint_line(plan: StackPlan) -> str:
    """Return the maximum number of nodes and lifetime of the stack, and the limits in its
    config."""
    limits, found = plan.config.deployment.limits, plan.footprint
    hours = f", {significant(found.gpu_hours, 3)} GPU-hours" if found.gpus else ""
    shown_limits = [
        f"{name} {text(limit)}"
        for name, (_, text) in LIMITS.items()
        if (limit := getattr(limits, name)) is not None
    ]
    added = found.pods - plan.totals.pods
    return (
        f"at most {count(found.nodes, 'node')} for {format_duration(found.time_ns)}{hours}"
        + (f", with {count(added, 'pod')} that events or autoscalers add" if added else "")
        + (f"; limits: {', '.join(shown_limits)}" if shown_limits else "")
    )


def removal_line(plan: StackPlan) -> str:
    """Return the time at which the stack removes itself."""
    deployment = plan.config.deployment
    ttl = format_duration(deployment.ttl)
    if deployment.queue is None:
        return f"{ttl} after its creation"
    max_life = format_duration(deployment.longest_life)
    return f"{ttl} after its admission, {max_life} after its creation at the latest"


def namespace_line(plan: StackPlan) -> str:
    """Return the namespace, and whether the stack's removal deletes it."""
    wanted = plan.config.deployment.namespace
    if wanted.mode == "existing":
        return f"{wanted.name}: exists and is kept; only the stack's own objects are removed"
    name = wanted.name or f"aiperf-{plan.identity.stack}-…"
    return f"{name}: created, removed with everything in it"


def objects_line(plan: StackPlan) -> str:
    """Return the kinds of objects and their numbers."""
    exposed = plan.config.deployment.results.expose != "port-forward"
    is_watched = plan.config.deployment.monitoring == "prometheus-operator"
    accounts = 1 + bool(plan.jobs) + (plan.release is not None)
    pools = plan.config.deployment.target.pools.values()
    pages = sum(pool.port is not None for pool in pools)
    counts = [
        (int(plan.config.deployment.namespace.mode != "existing"), "Namespace"),
        (len(plan.deployed), "Deployment"),
        (len(plan.jobs), "Job"),
        (sum(len(pod.sets) for pod in plan.pods), "StatefulSet"),
        (_claims(plan), "PersistentVolumeClaim"),
        (sum(pod.has_service for pod in plan.pods) + exposed + pages, "Service"),
        (len(plan.policies), "NetworkPolicy"),
        (1 + len(plan.secret_keys), "Secret"),
        (2 + bool(plan.shared_env), "ConfigMap"),
        (1 + accounts, "ServiceAccount"),
        (accounts, "Role"),
        (accounts, "RoleBinding"),
        (1, "Lease"),
        (int(plan.budget is not None), "PodDisruptionBudget"),
        (int(is_watched), "PodMonitor"),
        (int(is_watched), "PrometheusRule"),
    ]
    own = ", ".join(
        count(number, kind).replace("Policys", "Policies") for number, kind in counts if number
    )
    if plan.release is None:
        return own
    return f"{own}; of the release {', '.join(name_of(each) for each in plan.release.objects)}"


def _claims(plan: StackPlan) -> int:
    """Return the number of claims: one per replica, or one for all."""
    kinds = [(pod, volume.kind) for pod in plan.pods for volume in pod.all_volumes]
    own = sum(pod.replicas for pod, kind in kinds if kind == "claim")
    return own + sum(kind == "shared-claim" for _, kind in kinds)


def as_text(plan: StackPlan, compared: StackChanges) -> str:
    """Format the summary for a terminal."""
    of_pods = (name for pod in plan.scheduled for name in pod.image_names)
    images = dict.fromkeys((*of_pods, *plan.custom_images))
    rows = [
        *_subject_rows(plan),
        *facts(plan),
        *(("image", name) for name in images),
        ("namespace", namespace_line(plan)),
        ("asks for", totals_line(plan)),
        ("footprint", footprint_line(plan)),
        *((("cost", whole_cost(plan)),) if whole_cost(plan) else ()),
        ("creates", objects_line(plan)),
        ("removes itself", removal_line(plan)),
        ("Pod Security", plan.pod_security),
    ]
    lines = [title(plan), *(line for name, text in rows for line in _row(name, text))]
    lines += [f"  note: {note}" for note in plan.notes]
    if compared.changed is not None or compared.not_compared:
        lines += [f"  {line}" for line in _wrapped(_about(compared), WIDTH - 2)]
    lines += [f"    {each}" for each in (compared.changed or ())[:FEW]]
    return "\n".join(lines)


def kept(plan: StackPlan, *, namespace: str | None, expires: str) -> str:
    """Return the message about a kept stack: its expiry, and the commands for it."""
    stack, ttl = plan.identity.stack, format_duration(plan.config.deployment.ttl)
    until = expires or f"{ttl} after its creation"
    return (
        f"kept: stack {stack} in namespace {namespace}, until {until}\n"
        f"  aiperf-svc results {stack}   fetches its results again\n"
        f"  aiperf-svc gc {stack}        removes it now"
    )


def took(seconds: Mapping[str, float]) -> str:
    """Format the seconds of each stage: `took: preflight 0.3 s, up 21.4 s`."""
    return f"took: {', '.join(f'{stage} {value:.1f} s' for stage, value in seconds.items())}"


def as_markdown(plan: StackPlan, compared: StackChanges) -> str:
    """Format the summary for a pull request."""
    totals = plan.totals
    cost = f"{totals.cost_per_hour:g} {totals.currency}" if totals.cost_per_hour else "no prices"
    rows = [
        *(
            (name[0].upper() + name[1:], text)
            for name, text in (*_subject_rows(plan), *facts(plan))
        ),
        ("Namespace", namespace_line(plan)),
        ("Pods", f"{totals.pods:,}"),
        ("CPU", cores(totals.cpu_millis)),
        ("Memory", gibibytes(totals.memory_bytes)),
        ("GPUs", f"{totals.gpus:,}"),
        ("Cost per hour", cost),
        *((("Cost of the run", whole_cost(plan)),) if whole_cost(plan) else ()),
        ("Footprint", footprint_line(plan)),
        ("Removes itself", removal_line(plan)),
        ("Pod Security", plan.pod_security),
        ("Run", f"`{plan.identity.run_id}`"),
    ]
    lines = [f"### Benchmark stack `{plan.identity.stack}`", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(text)} |" for name, text in rows]
    lines += ["", "#### Created", "", f"{objects_line(plan)}.", ""]
    lines += ["| pod | replicas | CPU each | memory each | GPUs each | image |"]
    lines += ["|---|---:|---:|---:|---:|---|"]
    lines += [_pod_row(pod) for pod in plan.scheduled]
    changed = compared.changed or ()
    lines += ["", f"#### Changed against {compared.base}", "", _about(compared)]
    if changed:
        lines += ["", "```diff"]
        for each in changed[:FEW]:
            before, _, after = str(each).removeprefix(f"{each.key}: ").partition(" → ")
            lines += [f"- {each.key}: {before}", f"+ {each.key}: {after}"]
        lines.append("```")
    if len(changed) > FEW:
        lines += ["", f"… and {len(changed) - FEW} more"]
    if plan.notes:
        lines += ["", "#### Notes", "", *(f"- {note}" for note in plan.notes)]
    return "\n".join(lines) + "\n"


def section(title: str, lines: Sequence[str], language: str = "") -> list[str]:
    """Return a section of Markdown that shows these lines verbatim."""
    return [f"#### {title}", "", f"```{language}", *lines, "```"]


def _about(compared: StackChanges) -> str:
    """Describe the comparison in one sentence."""
    if compared.not_compared:
        return (
            f"Not compared with {compared.base}: {compared.not_compared}. --against FILE compares "
            "with another version of the stack file instead."
        )
    if compared.changed is None:
        return "Nothing to compare with: nothing is deployed."
    if not compared.is_new_run:
        return "The benchmark is unchanged: no new run. Change --generation to start one."
    number = len(compared.changed)
    change = f"{number} key{'s' * (number > 1)} of the benchmark changed"
    if not number:
        change = "The image, version or generation changed; the benchmark did not"
    lost = "; results that were not collected are discarded" if compared.is_deployed else ""
    return f"{change}: a new run{lost}."


def _row(name: str, text: str) -> list[str]:
    """Format a name and its text, which may span several lines."""
    first, *more = _wrapped(text, WIDTH - INDENT) or [""]
    return [f"  {name:<{INDENT - 2}}{first}", *(f"{'':<{INDENT}}{line}" for line in more)]


def _pod_row(pod: PodPlan) -> str:
    needs = pod.total
    gpu = f"{needs.gpu_count} {(needs.gpu and needs.gpu.type) or ''}".strip()
    gpu = gpu if needs.gpu_count else ""
    images = ", ".join(f"`{name}`" for name in pod.image_names)
    cells = (pod.name, f"{pod.replicas:,}", format_cpu(needs.cpu_millis),
             format_size(needs.memory_bytes), gpu, images)  # fmt: skip
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
