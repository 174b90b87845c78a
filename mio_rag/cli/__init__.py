"""The command line: `app.py` registers the commands, one file holds each group of them. `options.py` has the
options that several share, `chosen.py` what --policy and --set make of a policy, `show.py` and
`show_control.py` what people see. `output.py` has exit codes, streams and JSON; `terminal.py` text and
progress; `interrupt.py` Ctrl-C. What takes long to import is imported within the functions that use it, so
that ``--help`` does not wait for it.
"""

__all__ = ["main"]


def main() -> None:
    """Run the command line: for scripts that an earlier installation wrote."""
    from mio_rag.cli.app import main as run

    run()
