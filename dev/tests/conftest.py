"""The default model, as for the package's own tests."""

from tests.conftest import default_model  # noqa: F401
