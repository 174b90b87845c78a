"""``python -m mio_rag``: the same as the command ``mio-rag``."""

from mio_rag.cli import main

if __name__ == "__main__":
    main()
