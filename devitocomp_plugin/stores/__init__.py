"""
The stores of compressed snapshots: one module for each place where they rest. Importing
them registers them with the layers that they serve.
"""

import devitocomp_plugin.stores.device
import devitocomp_plugin.stores.disk
import devitocomp_plugin.stores.host  # noqa: F401
