from __future__ import annotations

import sys

from theodolite_server.command import main

sys.exit(main())
