"""The scale-up of one replica during a load."""

from aiperf_svc.core.scaling.report import ReplicaTimeline, ScaleUp, ScalingResult

MOMENTS = {
    "created": 31.0, "scheduled": 31.5, "pulled": 40.0, "running": 41.0, "ready": 60.0,
    "first_token": 61.0,
}  # fmt: skip
UP = ScaleUp(
    source="Deployment llm",
    reason="cpu above target",
    before=1,
    after=2,
    replicas=("llm-b",),
    load_changed_s=20.0,
    desired_s=30.0,
    decision_s=10.0,
    scale_up_s=30.0,
    use_s=1.0,
    recovery_s=None,
    judged_s=100.0,
)
REPLICA = ReplicaTimeline(
    name="llm-b", node="n1", gpus=2, image="", moments_s=MOMENTS, gone_s=None, idle_s=29.5
)
FOUND = ScalingResult(
    scale_ups=(UP,),
    replicas=(REPLICA,),
    desired=((0.0, 1), (30.0, 2)),
    ready=((0.0, 1), (60.0, 2)),
    limit="95% of the requests are within ttft 1s",
    idle_gpu_s=59.0,
    not_watched=("events (forbidden)",),
)
