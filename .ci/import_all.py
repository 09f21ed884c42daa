"""Imports every module of one installed package, and fails if forbidden ones are installed or came along.

Usage: python import_all.py PACKAGE [FORBIDDEN ...]
"""

import importlib
import importlib.util
import pkgutil
import sys


def import_all(package_name: str) -> list[str]:
    """Imports the package and all its modules but `__main__`, and returns their names."""
    package = importlib.import_module(package_name)
    found = (module.name for module in pkgutil.walk_packages(package.__path__, f"{package_name}."))
    names = [name for name in found if not name.endswith("__main__")]
    for name in names:
        importlib.import_module(name)
    return [package_name, *names]


def main(package_name: str, *forbidden: str) -> int:
    """Returns the exit status: 0 when everything imports and nothing forbidden is near."""
    names = import_all(package_name)
    loaded = [name for name in forbidden if name in sys.modules]
    installed = [name for name in forbidden if name not in loaded and importlib.util.find_spec(name)]
    for problem, culprits in (("imported", loaded), ("installed", installed)):
        if culprits:
            print(f"{package_name} must do without {', '.join(culprits)}, yet found it {problem}")
    print(f"{package_name}: {len(names)} modules imported")
    return 1 if loaded or installed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
