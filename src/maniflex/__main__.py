"""`python -m maniflex`: the command line, where `maniflex` is not on the path."""

from maniflex.cli.entry import run_program

if __name__ == "__main__":
    run_program()
