"""`maniflex completion bash|zsh|fish`: what makes a shell complete the commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

WHERE = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/completions/maniflex.fish"}


@click.command(epilog="Example: maniflex completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(sorted(WHERE)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options; append it to the settings of your shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, "maniflex", "_MANIFLEX_COMPLETE")
    variables = script.source_vars()
    click.echo(script.source_template % variables)
