"""The last that the fork server imports, and nobody else: what every rank will need of this
library.

The server must outlive a file that does not import, such as an experiment in the middle of an edit:
it then drops everything, and the rank that imports that file tells its error.
"""

import gc
from importlib import import_module
from pkgutil import iter_modules

from . import fresh, orphan

# What labs import late, but for torch's compiler, which takes seconds.
LATE = (
    *(
        f"{wing}.{file.name}"
        for wing in ("train", "models", "data")
        for file in iter_modules([f"{fresh.ROOT}/{wing}"])
    ),
    "techniques.data_loader",
    "techniques.mesh_tensor",
    "techniques.parameter_server",
    "techniques.reducers",
    "techniques.saved",
)

try:
    for _name in ("runtime.process.child", "experiments", *LATE):
        import_module(f"{fresh.PACKAGE}.{_name}")
except Exception as error:
    fresh.drop()
    raise ImportError(str(error)) from error  # which the server passes over
finally:
    gc.freeze()  # a rank's collector need not look at what it inherits, and copy the pages
    orphan.end()
