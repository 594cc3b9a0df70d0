"""`aiperf-svc rank-setup`: what the init containers of a rank's pod execute."""

import argparse

DESCRIPTION = """Prepare a rank's pod: make the folder that the rank shares with its courier, or set
the MTU of its interface.

Runs in a pod of a stack, whose environment says where."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is to be prepared."""
    parser.add_argument("what", choices=("folder", "mtu"), help="what is prepared")


def run(args: argparse.Namespace) -> int:
    """Prepare it."""
    from aiperf_svc.adapters.ranks import pod_setup

    if args.what == "folder":
        pod_setup.make_rank_folder()
    else:
        pod_setup.set_mtu()
    return 0
