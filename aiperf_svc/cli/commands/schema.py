"""`aiperf-svc schema`."""

import argparse

DESCRIPTION = """Print the JSON Schema of a file, for editors and other programs.

`stack` is a stack file, `config` a plain config; the others are result files. An editor with a YAML
language server reads the schema that the first line of a file names:

  # yaml-language-server: $schema=schema.json"""
NAMES = ("stack", "config", "profile_export_aiperf", "results", "experiment", "qualification")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name."""
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))


def run(args: argparse.Namespace) -> int:
    """Print it."""
    import json

    from aiperf_svc.cli.schemas import json_schema

    print(json.dumps(json_schema(args.name), indent=1, ensure_ascii=False))
    return 0
