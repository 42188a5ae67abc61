"""Builds the extension where it can be built; where it cannot, the package installs without it and keeps the reason."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
SOURCES = ["gemm", "math", "nanobind", "ops", "products", "tiles_avx2", "tiles_avx512"]
REASON_LENGTH = 300


class Build(build_ext):
    """build_ext that never fails: what became of it stands in build.json beside the module."""

    def run(self) -> None:
        record = {"mlx": None, "reason": None}
        try:
            record["mlx"] = self._prepare()
            super().run()
        except BaseException as error:  # a compiler that is missing, or anything it says
            if isinstance(error, KeyboardInterrupt):
                raise
            record["reason"] = f"{type(error).__name__}: {error}"[:REASON_LENGTH]
            sys.stderr.write(f"theodolite-cpu: built without its extension: {record['reason']}\n")
            self.extensions = []
        folder = HERE / "src" if self.inplace else Path(self.build_lib)
        (folder / "theodolite_cpu").mkdir(parents=True, exist_ok=True)
        (folder / "theodolite_cpu" / "build.json").write_text(json.dumps(record))

    def _prepare(self) -> str:
        """Fill in paths; the MLX version that the extension is built against."""
        if sys.platform != "linux":
            raise RuntimeError(f"for Linux only, this is {sys.platform}")
        from importlib import metadata, util

        import nanobind

        [mlx] = util.find_spec("mlx").submodule_search_locations
        nano = Path(nanobind.source_dir())
        [extension] = self.extensions
        robin_map = nano.parent / "ext/robin_map/include"
        extension.include_dirs = [nanobind.include_dir(), str(nano), str(robin_map), f"{mlx}/include"]
        extension.library_dirs = [f"{mlx}/lib"]
        extension.libraries = ["mlx", "dl"]
        return metadata.version("mlx")

    def get_outputs(self) -> list[str]:
        return super().get_outputs() if self.extensions else []


FLAGS = [
    "-std=c++20", "-O3", "-g0", "-fvisibility=hidden", "-fno-strict-aliasing", "-pthread",
    # reductions may be reordered; not-a-number and infinities keep their meaning
    "-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros", "-ffp-contract=fast",
]  # fmt: skip
extension = Extension(
    "theodolite_cpu._ops",
    sources=[f"csrc/{name}.cpp" for name in SOURCES],
    depends=sorted(f"csrc/{header.name}" for header in HERE.glob("csrc/*.h")),
    language="c++",
    define_macros=[("NB_DOMAIN", "mlx"), ("NDEBUG", None)],
    extra_compile_args=FLAGS,
    extra_link_args=["-pthread"],
)
setup(ext_modules=[extension], cmdclass={"build_ext": Build})
