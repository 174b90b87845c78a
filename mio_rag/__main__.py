"""The command ``mio-rag``, also as ``python -m mio_rag``."""

import gc
import os

from mio_rag.cli import interrupt


def main() -> None:
    """Run the command line; an interrupt ends it with one line, even while it is being loaded."""
    watched = interrupt.watch_early()
    # Loading libraries makes many objects and little garbage, and looking for it takes up to a fifth of the
    # time that they take to load.
    gc.set_threshold(50_000, 20, 20)
    # Pydantic would read the metadata of every installed package in search of plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    code: object = 1
    try:
        from mio_rag.cli.app import main as run

        if watched:
            interrupt.watch()
        run()
    except KeyboardInterrupt:
        interrupt.end()
    except SystemExit as ended:
        code = ended.code
        raise
    finally:
        if watched:
            interrupt.watch_no_more(code if isinstance(code, int) else 1)
        gc.freeze()  # else an eighth of a short command is a search for garbage among all that it loaded


if __name__ == "__main__":
    main()
