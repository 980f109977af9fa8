"""``python -m chains``: what this installation has; ``python -m chains COMMAND --help`` tells about the others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from chains.commands import export, info

# Each module of a command has `arguments`, which declares what it takes, and `run`, which does it. Its name is the command.
COMMANDS = (info, export)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; `info` where none is named. Returns the exit status, 1 with a sentence where a command fails."""
    parser = argparse.ArgumentParser(prog="python -m chains", description=f"{info.__doc__} With a command, that.")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in COMMANDS:
        about = (module.__doc__ or "").split("\n")[0]
        command = subparsers.add_parser(module.__name__.rpartition(".")[2], help=about, description=module.__doc__)
        module.arguments(command)
        command.set_defaults(run=module.run)
    given = parser.parse_args(arguments)
    try:
        getattr(given, "run", info.run)(given)
    except (OSError, TypeError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
