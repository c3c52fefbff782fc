"""Copies the suite, with what it expects of its own model's words told apart from what it expects of a server.

An `assert` that names one of `OF_THE_MODEL` becomes a call of `expected`, which writes down where it does not hold and
goes on. All other assertions are as they were. A test that passes besides such notes is counted apart.
"""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

OF_THE_MODEL = {
    "match_regex": "words",
    "re_content": "words",
    "n_prompt": "prompt tokens",
    "n_cache": "prompt tokens",
    "n_tokens": "prompt tokens",
    "batch_count": "prompt tokens",
    "system_fingerprint": "name of the build",
}
"""Names in assertions about the model that answers (or about which program it is), and what they are about."""
HELPER = '''

def expected(condition, about, where):
    """Write down what does not hold of the model."""
    try:
        holds = condition()
    except Exception:
        holds = False
    if not holds:
        with open(os.environ["FORERUN_SUITE_NOTES"], "a") as notes:
            test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
            notes.write(json.dumps({"test": test, "about": about, "where": where}) + "\\n")


ServerPreset.load_all = staticmethod(lambda: None)  # nothing is to be fetched
'''


class _ContentNotes(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.stmt:  # ast calls it so
        names = {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)}
        names |= {one.attr for one in ast.walk(node.test) if isinstance(one, ast.Attribute)}
        names |= {one.value for one in ast.walk(node.test) if isinstance(one, ast.Constant)
                  if isinstance(one.value, str)}  # fmt: skip
        about = next((what for name, what in OF_THE_MODEL.items() if name in names), None)
        if about is None:
            return node
        condition = ast.Lambda(
            ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]),
            node.test,
        )
        place = ast.Constant(f"line {node.lineno}: {ast.unparse(node.test)}")
        call = ast.Call(
            ast.Name("expected", ast.Load()), [condition, ast.Constant(about), place], []
        )
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), node))


def copy(suite: Path, folder: Path) -> None:
    """Copy the suite's tests to a folder."""
    shutil.copytree(suite, folder)
    helpers = folder / "utils.py"
    helpers.write_text(helpers.read_text() + HELPER)
    for path in sorted((folder / "unit").glob("test_*.py")):
        path.write_text(ast.unparse(_ContentNotes().visit(ast.parse(path.read_text()))) + "\n")
