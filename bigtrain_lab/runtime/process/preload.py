"""The last that the fork server imports, and nobody else: what every rank will need of this
library.

The server must outlive a file that does not import, such as an experiment in the middle of an edit:
it then drops everything, and the rank that imports that file tells its error.
"""

import gc
from importlib import import_module

from . import fresh, orphan

try:
    for _name in ("runtime.process.child", "experiments"):
        import_module(f"{fresh.PACKAGE}.{_name}")
except Exception as error:
    fresh.drop()
    raise ImportError(str(error)) from error  # which the server passes over
finally:
    gc.freeze()  # a rank's collector need not look at what it inherits, and copy the pages
    orphan.end()
