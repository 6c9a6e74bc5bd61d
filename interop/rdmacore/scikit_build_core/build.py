"""Stands in for the build system of the source package while pip downloads it.

pip asks the build system for the package's metadata even when it only downloads. The real one would have to be
installed, and configure the whole package, to answer with what PKG-INFO says already.
"""

import os
import shutil


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = 'pyverbs.dist-info'
    os.makedirs(os.path.join(folder, name))
    shutil.copyfile('PKG-INFO', os.path.join(folder, name, 'METADATA'))
    return name
