"""Reading a text file that a user named."""

from __future__ import annotations

from pathlib import Path

from forerun.core.errors import ConfigError


def read_text(file: str | Path) -> str:
    """Return the text of a UTF-8 file. Raises ConfigError that says in words why it cannot be read."""
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no such file: {file}") from None
    except IsADirectoryError:
        raise ConfigError(f"{file} is a folder, not a text file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
