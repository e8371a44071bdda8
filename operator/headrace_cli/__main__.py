"""`python -m headrace_cli`: how `headrace up` starts its brokers and producers."""

from headrace_cli.main import main

if __name__ == "__main__":
    main()
