"""The services of a run."""

from enum import StrEnum


class Service(StrEnum):
    """The seven services."""

    SYSTEM_CONTROLLER = "system-controller"
    DATASET_MANAGER = "dataset-manager"
    TIMING_MANAGER = "timing-manager"
    WORKER_MANAGER = "worker-manager"
    RECORDS_MANAGER = "records-manager"
    WORKER = "worker"
    RECORD_PROCESSOR = "record-processor"
