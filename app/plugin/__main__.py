"""`python -m app.plugin` is `kubectl-fairgate`."""

from app.plugin.command import main

if __name__ == "__main__":
    main()
