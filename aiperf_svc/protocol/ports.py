"""The port map: which service binds which socket. The numbers are the same in every pod. In a local
run they are file names.

port  bound by            pattern            who connects
5661  system controller   proxy, front       dataset clients (DEALER)
5662  system controller   proxy, back        dataset manager (ROUTER)
5663  system controller   proxy, XSUB        the single services' publishers
5668  system controller   proxy, XSUB        reports of workers and record processors
5664  system controller   proxy, XPUB        all subscribers
5665  system controller   proxy, front       workers (DEALER), unless records go direct
5666  system controller   proxy, back        record processors (DEALER)
5562  timing manager      ROUTER             workers (DEALER): credits
5563  timing manager      PULL               workers (PUSH): returns
5557  records manager     PULL               record processors (PUSH)
5667  record processor    ROUTER             its workers (DEALER), when records go direct
9090  records manager     HTTP               the runner

In a stack of Jobs (`experiment.fan_out`) the collector replaces the records manager and uses its
keys. It binds 5557 as REP, to which the indexes connect (REQ) with a record processor's keys.

Clients are identified by their keys: a service's socket admits the services listed for its port.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Literal

from aiperf_svc.protocol.services import Service


class Port(IntEnum):
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
    REPORTS_IN = 5668
    RESULTS_API = 9090


BOUND_BY: dict[Port, Service] = {
    Port.RECORDS: Service.RECORDS_MANAGER,
    Port.CREDIT_DROP: Service.TIMING_MANAGER,
    Port.CREDIT_RETURN: Service.TIMING_MANAGER,
    Port.DATASET_FRONT: Service.SYSTEM_CONTROLLER,
    Port.DATASET_BACK: Service.SYSTEM_CONTROLLER,
    Port.EVENTS_IN: Service.SYSTEM_CONTROLLER,
    Port.EVENTS_OUT: Service.SYSTEM_CONTROLLER,
    Port.REPORTS_IN: Service.SYSTEM_CONTROLLER,
    Port.RAW_FRONT: Service.SYSTEM_CONTROLLER,
    Port.RAW_BACK: Service.SYSTEM_CONTROLLER,
    Port.RAW_DIRECT: Service.RECORD_PROCESSOR,
    Port.RESULTS_API: Service.RECORDS_MANAGER,
}
"""The service that binds each port; a Service object in a cluster has these and no others."""

REPLICAS = frozenset({Service.WORKER, Service.RECORD_PROCESSOR})
"""Services with several instances. They only report."""
CONNECTED_BY: dict[Port, frozenset[Service]] = {
    Port.RECORDS: frozenset({Service.RECORD_PROCESSOR}),
    Port.CREDIT_DROP: frozenset({Service.WORKER}),
    Port.CREDIT_RETURN: frozenset({Service.WORKER}),
    Port.DATASET_FRONT: frozenset(
        # The records manager keeps a copy of the prompts next to the results.
        {Service.WORKER, Service.TIMING_MANAGER, Service.RECORDS_MANAGER}
    ),
    Port.DATASET_BACK: frozenset({Service.DATASET_MANAGER}),
    Port.EVENTS_IN: frozenset(Service) - REPLICAS,
    Port.EVENTS_OUT: frozenset(Service),
    Port.REPORTS_IN: REPLICAS,
    Port.RAW_FRONT: frozenset({Service.WORKER}),
    Port.RAW_BACK: frozenset({Service.RECORD_PROCESSOR}),
    Port.RAW_DIRECT: frozenset({Service.WORKER}),
}
"""Services that connect to each port between services."""


def with_peers(services: Iterable[Service]) -> frozenset[Service]:
    """Return `services`, the services that they connect to, and those that connect to them."""
    own = frozenset(services)
    found = set(own)
    for port, clients in CONNECTED_BY.items():
        if clients & own:
            found.add(BOUND_BY[port])
        if BOUND_BY[port] in own:
            found |= clients
    return frozenset(found)


def key_file(service: Service, half: Literal["public", "secret"]) -> str:
    """Name of the file that holds one half of a service's key pair."""
    return f"{service.value}.{half}"
