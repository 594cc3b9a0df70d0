"""Arguments of the commands that describe, translate and serve, and of `service`."""

import argparse

from aiperf_svc.cli.arguments import port_number


def workloads(parser: argparse.ArgumentParser) -> None:
    """List the kinds of workloads, or describe one: its keys with defaults, its metrics,
    and the tools that it needs.

    To run a workload, use a stack file with `workload: {kind: KIND, ...}`, or on this machine
    `aiperf-svc profile --workload KIND KEY=VALUE...`."""
    parser.add_argument("kind", nargs="?", metavar="KIND", help="Describe this kind.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")


SCHEMAS = (
    *("stack", "config", "profile_export_aiperf", "results", "experiment", "qualification"),
    *("joint", "verdict", "manifest", "provenance", "quality", "profile_export", "inputs"),
    *("profile_export_aiperf_timeslices", "profile_export_aiperf_aggregate"),
    "profile_export_aiperf_sweep",
)


def schema(parser: argparse.ArgumentParser) -> None:
    """Print the JSON Schema of a file, for editors and other programs.

    `stack` is a stack file, `config` a plain config; the others are result files, `qualification`
    is qualify.json and `quality` a line of quality.jsonl. An editor with a YAML language server
    reads the schema that the first line of a file names:

      # yaml-language-server: $schema=schema.json"""
    parser.add_argument("name", choices=SCHEMAS, metavar="NAME", help=", ".join(SCHEMAS))


TRACE_FORMAT = "mooncake_trace"
TRACE_LIMITS = {
    "--synthesis-max-isl": "Skip rows with longer prompts, as `profile` does.",
    "--synthesis-max-osl": "Limit the output tokens of each row, as `profile` does.",
}


def trace(parser: argparse.ArgumentParser) -> None:
    """Describe a trace: rates, lengths, and the share of its prompts that repeats an
    earlier prefix, which is the hit rate of an unlimited prefix cache.

    The file is read row by row. `profile --input-file` sends its prompts."""
    parser.add_argument("file", metavar="FILE", help="The trace, plain or gzip.")
    parser.add_argument(
        "--custom-dataset-type",
        metavar="TYPE",
        default=TRACE_FORMAT,
        help=f"Format: a kind of dataset whose rows have times. Default: {TRACE_FORMAT}.",
    )
    parser.add_argument(
        "--isl-block-size",
        "--block-size",
        metavar="N",
        type=int,
        help="Tokens per hash id. Default: 512, or 16 in a bailian_trace.",
    )
    for name, help_text in TRACE_LIMITS.items():
        parser.add_argument(name, metavar="N", type=int, help=help_text)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")


def migrate(parser: argparse.ArgumentParser) -> None:
    """Translate a command line of AIPerf into one of this program, and list the
    differences. Quote the command, or put it after the other flags.

      aiperf-svc migrate 'aiperf profile --model Qwen/Qwen3-0.6B --streaming --concurrency 10'"""
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    parser.add_argument(
        "command", metavar="COMMAND", nargs=argparse.REMAINDER, help="Command line of AIPerf."
    )


def mock_server(parser: argparse.ArgumentParser) -> None:
    """Serve synthetic tokens at a fixed pace, as an OpenAI-compatible server."""
    # Imported here because the other commands of this module do not need it.
    from aiperf_svc.mock_server.config import add_arguments

    add_arguments(parser)


EXPORTER_PORT = 9400
"""Port of dcgm-exporter, whose metrics names the page uses."""


def nvml_exporter(parser: argparse.ArgumentParser) -> None:
    """Serve a page of this machine's GPU metrics, with the names of DCGM, read through NVML."""
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="Address to listen on. The page needs no key. Default: 127.0.0.1.",
    )
    parser.add_argument(
        "--port",
        type=port_number,
        default=EXPORTER_PORT,
        help=f"Port to listen on. Default: {EXPORTER_PORT}.",
    )
    parser.add_argument(
        "--gpus",
        default="all",
        help="GPUs on the page: all, or indexes and UUIDs such as 0,1. Default: all.",
    )


SHELLS = ("bash", "zsh", "fish")


def completion(parser: argparse.ArgumentParser) -> None:
    """Print the completion of commands and flags for a shell.

    Put it where the shell reads it:

      bash   source <(aiperf-svc completion bash), in ~/.bashrc
      zsh    aiperf-svc completion zsh >"${fpath[1]}/_aiperf-svc"
      fish   aiperf-svc completion fish >~/.config/fish/completions/aiperf-svc.fish"""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def man(parser: argparse.ArgumentParser) -> None:
    """Print the manual page.

    It describes all commands and flags:

      aiperf-svc man >~/.local/share/man/man1/aiperf-svc.1"""


def version(parser: argparse.ArgumentParser) -> None:
    """Print the version."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="Print an object with the commit, Python, and the steps that are not compiled.",
    )


def service(parser: argparse.ArgumentParser) -> None:
    """Run one or several services of a benchmark in this process.

    The environment names the run; `profile`, `run` and a stack set it."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="system-controller, dataset-manager, timing-manager, worker-manager, "
        "records-manager, worker or record-processor. Default: AIPERF_SERVICE, separated by "
        "commas.",
    )
    # Only for `runner.fork_server`.
    parser.add_argument("--forks", type=int, help=argparse.SUPPRESS)
