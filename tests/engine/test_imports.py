"""What may be imported where: the decisions and the tokenizer never load torch."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "engine",
        "engine.errors",
        "engine.config",
        "engine.outputs",
        "engine.block_manager",
        "engine.scheduler",
        "engine.detokenizer",
        "engine.tokenizer",
        "engine.grammar_compiler",
    ],
)
def test_module_loads_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
