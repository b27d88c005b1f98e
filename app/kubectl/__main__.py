"""`python -m app.kubectl` is `kubectl-fairgate`."""

from app.kubectl.cli import main

if __name__ == "__main__":
    main()
