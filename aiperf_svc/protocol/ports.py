"""Which socket binds where. The numbers are the same in every pod; locally they are file names.

port  bound by            pattern            who connects
5661  system controller   proxy, front       dataset clients (DEALER)
5662  system controller   proxy, back        dataset manager (ROUTER)
5663  system controller   proxy, XSUB        everybody's publisher
5664  system controller   proxy, XPUB        everybody's subscriber
5665  system controller   proxy, front       workers (DEALER), unless records go direct
5666  system controller   proxy, back        record processors (DEALER)
5562  timing manager      ROUTER             workers (DEALER): credits
5563  timing manager      PULL               workers (PUSH): returns
5557  records manager     PULL               record processors (PUSH)
5667  record processor    ROUTER             its workers (DEALER), when records go direct
9090  records manager     HTTP               the runner
"""

from enum import IntEnum

from aiperf_svc.protocol.messages import Service


class Port(IntEnum):
    """The port map."""

    RECORDS = 5557
    CREDIT_DROP = 5562
    CREDIT_RETURN = 5563
    DATASET_FRONT = 5661
    DATASET_BACK = 5662
    EVENTS_IN = 5663
    EVENTS_OUT = 5664
    RAW_FRONT = 5665
    RAW_BACK = 5666
    RAW_DIRECT = 5667
    RESULTS_API = 9090


BOUND_BY: dict[Port, Service] = {
    Port.RECORDS: Service.RECORDS_MANAGER,
    Port.CREDIT_DROP: Service.TIMING_MANAGER,
    Port.CREDIT_RETURN: Service.TIMING_MANAGER,
    Port.DATASET_FRONT: Service.SYSTEM_CONTROLLER,
    Port.DATASET_BACK: Service.SYSTEM_CONTROLLER,
    Port.EVENTS_IN: Service.SYSTEM_CONTROLLER,
    Port.EVENTS_OUT: Service.SYSTEM_CONTROLLER,
    Port.RAW_FRONT: Service.SYSTEM_CONTROLLER,
    Port.RAW_BACK: Service.SYSTEM_CONTROLLER,
    Port.RAW_DIRECT: Service.RECORD_PROCESSOR,
    Port.RESULTS_API: Service.RECORDS_MANAGER,
}
"""The service that binds each port; a Service object in a cluster has these and no others."""
