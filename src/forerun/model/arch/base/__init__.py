"""How a family's configuration and weight names become ours."""
