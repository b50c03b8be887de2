"""``python -m wellorder`` and the ``wellorder`` command."""

import sys


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        from wellorder._cli import app
        from wellorder._cli.display import write_legibly
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("wellorder"):
            raise
        sys.exit(f"The command needs {error.name}: pip install 'wellorder[experiments]'")
    write_legibly()
    app()


if __name__ == "__main__":
    main()
