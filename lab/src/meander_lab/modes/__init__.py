"""Other ways of moving bins, to compare the live one with; the engine has them as plug-ins under `meander.modes`.

live              copied ahead, flipped at a version, released later (N-Storm, and with a delay N-Storm+): in the engine
pause             everything holds while the state moves, no process ends (Ding 5.1)
pause_bins        only rows of bins that move wait, and go first once the state is there (Ding's wait buffers)
restart           the query is stopped and started on the new assignment (Storm's rebalance)
restart_workers   only executors whose bins change are restarted (Storm*)
"""

from __future__ import annotations

from meander_lab.modes.pause import Pause
from meander_lab.modes.pause_bins import PauseBins
from meander_lab.modes.restart import Restart, RestartWorkers

pause = Pause()
pause_bins = PauseBins()
restart = Restart()
restart_workers = RestartWorkers()
