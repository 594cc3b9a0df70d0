"""The flag tables of `docs/flags.md`, printed from the table of flags."""

from aiperf_svc.cli.flags import GROUPS, Flag


def tables() -> str:
    """Return one Markdown table for each group of flags."""
    return "\n".join(
        f"### {title.capitalize()}\n\n| Flag | Config key | Meaning |\n| --- | --- | --- |\n"
        + "".join(map(_row, flags))
        for title, flags in GROUPS.items()
    )


def _row(flag: Flag) -> str:
    names = ", ".join(f"`{name}`" for name in flag.names)
    return f"| {names} | `{flag.key}` | {flag.text} |\n"
