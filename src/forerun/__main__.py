"""`python -m forerun`: the command line, where its script is not on the path."""

from forerun.cli.main import main

if __name__ == "__main__":
    main()
