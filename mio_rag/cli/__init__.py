"""The command line: `app.py` registers the commands, `commands/` holds one file for each, `options/` what
several of them share, `show/` what they print. `output.py` knows exit codes and JSON, `progress.py` bars on
stderr; `streams.py`, `terminal.py` and `interrupt.py` know encodings, broken pipes and Ctrl-C. Whatever takes
long to import is imported within the functions that use it: ``--help`` waits for none of it.
"""

__all__ = ["main"]


def main() -> None:
    """Run the command line: for scripts that an earlier installation wrote."""
    from mio_rag.cli.app import main as run

    run()
