"""`python -m maniflex`: the command line, where `maniflex` is not on the path."""

from maniflex.cli import main

if __name__ == "__main__":
    main()
