"""`python -m app` is `fairgate`."""

from app.cli.main import main

if __name__ == "__main__":
    main()
