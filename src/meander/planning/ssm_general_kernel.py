"""The table behind `ssm_general`: best contiguous assignments with pinned bins, unequal workers and any present map.

best[x, v, mask] is the largest gain for bins 0..x-1, where v counts the workers spent of each capacity class
(mixed radix) and mask holds the owners that are used already, among those *remembered* at x. Remembering everyone at
every x would be exact and far too large; the caller chooses which owner to remember where, and its answer says whether
it was enough. `price` is charged for each use of an owner as keeper.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOBODY = -1
NEVER = -np.inf


@kernel
def fill(
    load: Floats,
    state: Floats,
    owner: Ints,
    pinned: NDArray[np.bool_],
    pins: Ints,
    class_of: Ints,
    cap: Floats,
    count: Ints,
    stride: Ints,
    spent: Ints,
    rest: Ints,
    memory: Ints,
    slot: Ints,
    price: Floats,
) -> tuple[Floats, NDArray[np.int32], NDArray[np.int32], NDArray[np.int16]]:
    """Fill the table from left to right; also returns, for each cell, the left end, keeper and mask it came from.

    Args:
        load: prefix sums of the loads.
        state: state of each bin.
        owner: the owner of each bin as an index, NOBODY where that owner leaves.
        pinned: which bins must stay.
        pins: number of pinned bins of each owner.
        class_of: the capacity class of each owner.
        cap: the most load a worker of each class may carry.
        count: how many workers of each class there will be.
        stride: the weight of each class in v.
        spent: how many workers v stands for.
        rest: for each x, the least number of workers that bins x.. need.
        memory: for each x and slot, the owner remembered there, or NOBODY.
        slot: the slot of each owner.
        price: the charge for each use of an owner.
    """
    m = state.size
    slots = memory.shape[1]
    masks = 1 << slots
    size = spent.size
    workers = count.sum()
    widest = cap.max()
    best = np.full((m + 1, size, masks), NEVER)
    from_left = np.full((m + 1, size, masks), NOBODY, dtype=np.int32)
    from_keeper = np.full((m + 1, size, masks), NOBODY, dtype=np.int32)
    from_mask = np.zeros((m + 1, size, masks), dtype=np.int16)
    best[0, 0, 0] = 0.0
    gain = np.zeros(class_of.size)
    seen = np.zeros(class_of.size, dtype=np.int64)
    for l in range(m):
        lowest, highest = size, -1
        for v in range(size):
            if best[l, v].max() > NEVER:
                lowest, highest = min(lowest, v), v
        owners, pin_owner, pins_in = 0, NOBODY, 0
        for r in range(l + 1, m + 1 if highest >= 0 else 0):
            weight = load[r] - load[l]
            if weight > widest:
                break
            j = r - 1
            w = owner[j]
            if w != NOBODY:
                fresh = True
                for i in range(owners):
                    if seen[i] == w:
                        fresh = False
                        break
                if fresh:
                    seen[owners] = w
                    gain[w] = 0.0
                    owners += 1
                gain[w] += state[j]
            if pinned[j]:
                if pin_owner != NOBODY and pin_owner != w:
                    break
                pin_owner = w
                pins_in += 1
            carried = 0
            for s in range(slots):
                if memory[l, s] != NOBODY and memory[l, s] == memory[r, s]:
                    carried |= 1 << s
            # One blank choice per class, then one choice per owner met.
            for choice in range(count.size + owners):
                if choice < count.size:
                    if pin_owner != NOBODY:
                        continue
                    who, c, value = NOBODY - 1 - choice, choice, 0.0
                    bit_before, bit_after = 0, 0
                else:
                    who = seen[choice - count.size]
                    if pins[who] != (pins_in if pin_owner == who else 0) or (pin_owner != NOBODY and pin_owner != who):
                        continue
                    c, value = class_of[who], gain[who] - price[who]
                    bit = 1 << slot[who]
                    bit_before = bit if memory[l, slot[who]] == who else 0
                    bit_after = bit if memory[r, slot[who]] == who else 0
                if weight > cap[c]:
                    continue
                for v in range(lowest, min(highest + 1, size - stride[c])):
                    if (v // stride[c]) % (count[c] + 1) == count[c] or workers - spent[v] - 1 < rest[r]:
                        continue
                    to = v + stride[c]
                    for mask in range(masks):
                        known = best[l, v, mask]
                        if known == NEVER or mask & bit_before:
                            continue
                        after = (mask & carried) | bit_after
                        if known + value > best[r, to, after]:
                            best[r, to, after] = known + value
                            from_left[r, to, after] = l
                            from_keeper[r, to, after] = who
                            from_mask[r, to, after] = mask
    return best, from_left, from_keeper, from_mask
