"""The tables of `docs/flags.md` and `docs/from-aiperf.md`, printed from those of the code."""

from aiperf_svc.cli.flags import GROUPS, Flag
from aiperf_svc.cli.foreign_flags import TABLE


def tables() -> str:
    """Return one Markdown table for each group of flags."""
    return "\n".join(
        f"### {title.capitalize()}\n\n| Flag | Config key | Meaning |\n| --- | --- | --- |\n"
        + "".join(map(_row, flags))
        for title, flags in GROUPS.items()
    )


def tables_of_aiperf() -> str:
    """Return one Markdown table for each kind of advice about a flag of AIPerf."""
    titles = {
        "same": "Flags that can be left out",
        "other": "Flags that are said otherwise",
        "none": "Flags without a counterpart",
    }
    return "\n".join(
        f"### {title}\n\n| Flags of AIPerf | Here |\n| --- | --- |\n"
        + "".join(
            f"| {', '.join(f'`{name}`' for name in names.split())} | {text} |\n"
            for kind_of_row, text, names in TABLE
            if kind_of_row == kind
        )
        for kind, title in titles.items()
    )


def _row(flag: Flag) -> str:
    names = ", ".join(f"`{name}`" for name in flag.names)
    return f"| {names} | `{flag.key}` | {flag.text} |\n"
