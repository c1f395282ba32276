"""The lessons go into the wheel, with the package that runs them; else see pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithLessons(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            shutil.copytree(
                "notebooks",
                Path(self.build_lib, "bigtrain_lab", "notebooks"),
                ignore=shutil.ignore_patterns("runs", ".*"),
                dirs_exist_ok=True,
            )


setup(cmdclass={"build_py": WithLessons})
