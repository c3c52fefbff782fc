"""`forerun`: the commands of the engine and of the laboratory; a mistake is one line on stderr."""

from __future__ import annotations

import difflib
import errno
import io
import os
import shlex
import sys
from collections.abc import Mapping, Sequence

import click

from forerun.cli.command import ALIKE, Group
from forerun.cli.help import MAX_WIDTH, next_steps
from forerun.core import registry
from forerun.core.errors import ConfigError, ForerunError, short_repr

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Answers": ("generate", "chat", "serve", "launch", "service", "demo"),
    "Models": ("models", "pull", "rm", "cache", "warm", "check", "plan", "quantize"),
    "Drafters": ("drafters", "tune", "train", "trim_vocab", "check_drafter", "export_drafter"),
    "Measurements": ("bench", "eval", "verify"),
}
"""The commands, by their headings in help; the laboratory's may be missing."""
HABITS: Mapping[str, str] = {
    **dict.fromkeys(("run", "cli", "llama-cli", "llama-run"), "forerun chat -m MODEL"),
    **dict.fromkeys(("list", "ls", "ps"), "forerun models"),
    **dict.fromkeys(("complete", "completion", "prompt"), "forerun generate {rest}"),
    **dict.fromkeys(("server", "llama-server", "start", "api_server"), "forerun serve {rest}"),
    **dict.fromkeys(("show", "info", "inspect"), "forerun check {rest}"),
    **dict.fromkeys(("download", "fetch", "get"), "forerun pull {rest}"),
    **dict.fromkeys(("remove", "delete", "del"), "forerun rm {rest}"),
    **dict.fromkeys(("perplexity", "ppl", "llama-perplexity"), "forerun eval ppl {rest}"),
    **dict.fromkeys(("benchmark", "llama-bench"), "forerun bench {rest}"),
    "embedding": "forerun serve --embeddings",
    "autotune": "forerun tune -d all {rest}",
    "help": "forerun {rest} --help",
    "version": "forerun --version",
}
"""The command that is meant by a word of ollama, llama.cpp or vLLM."""
COMPLETE = "_FORERUN_COMPLETE"
"""Variable with which a shell asks for completions: docs/cli.md."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says of a disk that takes no more."""
_PIPE_CLOSED = 141
"""Exit code of a program that a closed pipe has ended: 128 + SIGPIPE."""


class _Root(Group):
    """All commands."""

    def modules(self) -> Mapping[str, str]:
        """Return the heading in help of each command, by its file's name."""
        there = registry.shipped("commands")
        return {name: group for group, each in GROUPS.items() for name in each if name in there}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments. Raises ConfigError with the command that was meant where none was given."""
        if args and not ctx.resilient_parsing and (meant := self._meant(ctx, args)):
            raise ConfigError(f"{short_repr(args[0])} is not a command: did you mean {meant}?")
        return super().parse_args(ctx, args)

    def _meant(self, ctx: click.Context, args: list[str]) -> str:
        """Find the command for words that begin with none; empty if they do, or nothing is like it."""
        word, rest = args[0], shlex.join(args[1:4])
        if word in HABITS and word not in self.list_commands(ctx):
            return HABITS[word].format(rest=rest).rstrip()
        if word.startswith("-"):
            answers = self.get_command(ctx, "generate")
            answer_flags = (
                {flag for each in answers.params for flag in each.opts} if answers else set()
            )
            answer_flags -= {flag for each in self.get_params(ctx) for flag in each.opts}
            is_one = word.partition("=")[0] in answer_flags
            return f"forerun generate {shlex.join(args[:4])}" if is_one else ""
        if word.endswith(".gguf"):
            return f"forerun chat -m {shlex.quote(word)}"
        text = word if len(word) < 60 else f"{word[:57]}..."
        return f"forerun generate {shlex.quote(text)}" if " " in word.strip() else ""


@click.command(
    "forerun",
    cls=_Root,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": MAX_WIDTH,
        "token_normalize_func": lambda word: word.replace("_", "-"),  # vLLM's --max_model_len
    },
)
@click.option("-V", "--version", is_flag=True, help="Print the version.")
@click.pass_context
def app(context: click.Context, version: bool) -> None:
    """Speculative decoding on CPUs: faster answers with exactly the same tokens.

    forerun COMMAND --help explains a command.
    """
    if version:
        import forerun

        click.echo(f"forerun {forerun.__version__}")
        context.exit()
    if context.invoked_subcommand is None:
        click.echo(f"{context.get_help()}\n\n{next_steps()}")


def main() -> None:
    """Run the command line. Exit codes: 0 fine, 1 the answer is no (verify), 2 a user's mistake, 130 Ctrl-C."""
    sys.stderr = sys.stderr or io.StringIO()  # a closed one is None
    if sys.stdout is None:
        sys.exit(_refuse("stdout is closed: the output cannot be written"))
    if isinstance(
        sys.stdout, io.TextIOWrapper
    ):  # a letter that its encoding lacks is written as \u2192, say
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = _PIPE_CLOSED
    except OSError as error:
        if error.errno not in _FULL:
            raise
        code = _refuse(f"the output cannot be written: {error.strerror}")
    else:
        sys.exit(code)
    # What is still buffered would fail again when Python ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(app, {}, "forerun", COMPLETE, instruction)
    try:
        with app.make_context("forerun", [*arguments]) as context:
            app.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except ForerunError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        if error.name == "torch":
            from forerun.system.device import NO_TORCH

            return _refuse(NO_TORCH)
        package, _, drafter = (error.name or "").rpartition(".")
        if package != "forerun.drafters":
            raise
        return _refuse(f"this needs the drafter '{drafter}', which is not installed")
    except click.UsageError as error:
        return _refuse(_usage(error, error.ctx.command_path if error.ctx else "forerun"))
    except (KeyboardInterrupt, click.Abort):
        return 130
    return 0


def _usage(error: click.UsageError, path: str) -> str:
    """Write what click says of a command line, with the closest option where there is none of a name."""
    if isinstance(error, click.NoSuchOption):
        word = error.option_name
        close = [each for each in error.possibilities or () if each[:2] == word[:2]]
        typed = word.partition("=")[0]
        swapped = [each for each in close if sorted(each) == sorted(typed)]  # --prot, --port
        close = swapped or difflib.get_close_matches(typed, close, 1, ALIKE)
        hint = f": did you mean {close[0]}?" if close else ";"
        if word[1:].isdigit():
            hint = ": put -- before a text that begins with a dash;"
        return f"{word} is not an option of {path}{hint} {path} --help lists them"
    message = error.format_message().rstrip(".")
    return f"{message[:1].lower()}{message[1:]}; see {path} --help"


def _refuse(message: str) -> int:
    """Print one line on stderr about what the user can put right, in a terminal broken between words."""
    from forerun.cli.wrap import WordWrap

    has_colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    wrap = WordWrap.of(sys.stderr)
    mark = wrap.push("error:", "\033[1;31m{}\033[0m" if has_colours else "{}")
    print(mark + wrap.push(f" {' '.join(message.split())}") + wrap.flush(), file=sys.stderr)
    return 2
