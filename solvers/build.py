"""Compile the kernels ahead of time, into an extension that needs no numba.

setuptools runs this for wheels and for ``pip install``, editable or not; ``python solvers/build.py`` makes
the extension of a checkout. Where it fails, for want of a C compiler, the installation goes on without: numba
then compiles on first use.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import sysconfig
import types
import warnings
from pathlib import Path
from typing import Any

from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

_HERE = Path(__file__).resolve().parent


class BuildKernel(build_ext):
    """Build the extension in a process of its own."""

    def build_extension(self, ext: Any) -> None:
        """Compile; `CompileError`, which is a warning for optional extensions, where that fails."""
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        made = _HERE / target.name  # by an editable installation of this checkout
        if made.is_file() and made.stat().st_mtime > max(Path(one).stat().st_mtime for one in ext.depends):
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(made), str(target))
            return
        done = subprocess.run([sys.executable, __file__, str(target)], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise CompileError(f"the kernels are not compiled ahead of time: {done.stderr.strip()[-400:]}")


def compile_to(target: Path) -> None:
    """Compile every entry point of the kernels into the extension `target`."""
    warnings.simplefilter("ignore")  # numba announces that pycc may go: numba on first use is then the way
    os.environ["MIO_RAG_KERNEL"] = "numba"
    for name, folder in (("mio_rag", _HERE.parent / "mio_rag"), ("mio_rag.solvers", _HERE)):
        package = types.ModuleType(name)  # without what its __init__ imports, which is not installed here
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    compiled = importlib.import_module("mio_rag.solvers.compiled")
    from numba.pycc import CC, compiler

    made_by_numba = compiler.Flags

    def flags() -> Any:
        made = made_by_numba()
        made.release_gil, made.error_model = compiled.FLAGS["nogil"], compiled.FLAGS["error_model"]
        return made

    compiler.Flags = flags
    extension = CC("_compiled", sys.modules["mio_rag.solvers.compiled"])
    target.parent.mkdir(parents=True, exist_ok=True)
    extension.output_dir, extension.output_file = str(target.parent), target.name
    digest = compiled.digest()
    extension.export("source", "int64()")(lambda: digest)
    for kernel in compiled.KERNELS:
        for name, entry in compiled.entries(importlib.import_module(f"mio_rag.solvers.{kernel}")).items():
            for suffix, shared in (("", False), ("_shared", True)):
                types_ = compiled.types_of(entry.py_func, shared)
                if types_ is not None:
                    extension.export(name + suffix, types_)(entry.py_func)
    extension.target_cpu = compiled.PROCESSOR
    extension.compile()


if __name__ == "__main__":
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    compile_to(Path(sys.argv[1]) if len(sys.argv) > 1 else _HERE / f"_compiled{suffix}")
