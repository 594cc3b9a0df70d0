"""All messages between services.

Three kinds of path, three rules:

- The *event bus* is publish/subscribe and may lose any message. So messages on it carry the whole
  current state, published on every change and again until all receivers have confirmed it
  (`events.py`; `reports.py` has the parts of a heartbeat).
- *Credits* travel on an addressed, mandatory-routing pair of sockets, in blocks (`credits.py`).
- *Records* travel in batches with per-worker sequence numbers and are kept until acknowledged
  (`records.py`).

Every message carries the run it belongs to and the epoch (start time) of the process that sent it.
With them a receiver refuses messages of a previous run or of a restarted process.
"""

from aiperf_svc.protocol.messages import credits, dataset, events, indexes, records, steps

AnyMessage = (
    events.Heartbeat
    | events.CancelRequested
    | events.StartRequested
    | events.RosterPublished
    | events.RunStatePublished
    | events.TrialPublished
    | events.RecordsAcknowledged
    | credits.WorkerAttached
    | credits.ClockProbed
    | credits.ClockReply
    | credits.PhaseOpened
    | credits.CreditsGranted
    | credits.PhaseStopped
    | credits.CreditsReturned
    | dataset.DatasetBlockRequested
    | dataset.DatasetBlock
    | dataset.DatasetShapeRequested
    | dataset.DatasetShape
    | dataset.ForcedLengthAsked
    | dataset.ForcedLengthDecided
    | records.RawBatch
    | records.MetricBatch
    | steps.RankAttached
    | steps.RankFilesRequested
    | steps.RankFiles
    | steps.StepOrder
    | steps.RankStatus
    | steps.LaunchRequested
    | steps.CommandLaunched
    | steps.LaunchEnded
    | steps.StepOutput
    | steps.StepRecord
    | indexes.IndexBegun
    | indexes.IndexFilePart
    | indexes.IndexEnded
    | indexes.CollectorReply
)
