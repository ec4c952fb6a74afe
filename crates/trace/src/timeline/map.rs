//! The address space at one moment, in a bounded number of cells.

use crate::held::HeldBlock;
use gapless::units::{DeviceAddr, KIB};

/// The memory that an allocator holds at one moment, in address order.
///
/// The held bytes are cut into cells of [`cell_bytes`](Self::cell_bytes) from the lowest address on; ranges of addresses
/// without memory are left out, and a new cell begins after each.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct AddressMap {
    /// Index of the first op that had not run.
    pub op: u64,
    /// Size of a cell in bytes, a power of two.
    pub cell_bytes: u64,
    /// A character for each cell: `0` if nothing in it is live, `9` if all is, and `1` to `8` between. `|` stands for
    /// addresses without memory between two cells.
    pub cells: String,
    /// Bytes in live blocks, rounding included.
    pub live_bytes: u64,
    /// Bytes in free blocks.
    pub free_bytes: u64,
    /// The largest run of free bytes with adjacent addresses.
    pub largest_free_bytes: u64,
    /// Number of runs of free bytes.
    pub free_runs: u64,
    /// The first and the last cell of each block that the timeline lists at this moment, or `None` for one without memory. Empty if
    /// it lists none.
    pub blocks: Vec<Option<[u32; 2]>>,
}

impl AddressMap {
    /// Draws `blocks`, which do not overlap, before the op at index `op`. `listed` are the addresses of the live blocks that are
    /// looked at one by one.
    pub(super) fn of(op: u64, mut blocks: Vec<HeldBlock>, listed: &[DeviceAddr]) -> Self {
        blocks.sort_unstable_by_key(|block| block.addr);
        let mut map = Self {
            op,
            cell_bytes: 0,
            cells: String::new(),
            live_bytes: 0,
            free_bytes: 0,
            largest_free_bytes: 0,
            free_runs: 0,
            blocks: Vec::new(),
        };
        map.measure(&blocks);
        let held = map.live_bytes + map.free_bytes;
        map.cell_bytes = held.div_ceil(MOST_CELLS as u64).next_power_of_two().max(LEAST_CELL_BYTES);
        // Separate ranges end with cells that are not full: larger cells until there are few enough.
        let cells = loop {
            let cells = draw(&blocks, map.cell_bytes);
            if cells.text.len() <= MOST_CELLS {
                break cells;
            }
            if cells.text.bytes().filter(|&cell| cell == GAP).count() > MOST_CELLS / 4 {
                // So many ranges do not fit one by one.
                let cells = draw(&joined(&blocks), map.cell_bytes);
                if cells.text.len() <= MOST_CELLS {
                    break cells;
                }
            }
            map.cell_bytes *= 2;
        };
        let cells_of = |addr: &DeviceAddr| {
            let index = blocks.binary_search_by_key(addr, |block| block.addr).ok()?;
            Some(cells.of_block[index])
        };
        map.blocks = listed.iter().map(cells_of).collect();
        map.cells = cells.text;
        map
    }

    fn measure(&mut self, blocks: &[HeldBlock]) {
        let mut run = 0;
        let mut end = None;
        for block in blocks {
            if block.live {
                self.live_bytes += block.bytes;
                run = 0;
            } else {
                self.free_bytes += block.bytes;
                if run == 0 || end != Some(block.addr) {
                    self.free_runs += 1;
                    run = 0;
                }
                run += block.bytes;
                self.largest_free_bytes = self.largest_free_bytes.max(run);
            }
            end = Some(block.addr.offset(block.bytes));
        }
    }
}

/// The same blocks without the addresses between them.
fn joined(blocks: &[HeldBlock]) -> Vec<HeldBlock> {
    let Some(first) = blocks.first() else { return Vec::new() };
    let mut addr = first.addr;
    let mut place = |block: &HeldBlock| {
        let placed = HeldBlock { addr, ..*block };
        addr = addr.offset(block.bytes);
        placed
    };
    blocks.iter().map(&mut place).collect()
}

fn draw(blocks: &[HeldBlock], cell_bytes: u64) -> Cells {
    let of_block = Vec::with_capacity(blocks.len());
    let mut cells = Cells { text: String::new(), of_block, cell_bytes, used: 0, live: 0 };
    let mut end = None;
    for block in blocks {
        if end.is_some_and(|end| end != block.addr) {
            cells.close();
            cells.text.push(char::from(GAP));
        }
        let first = cells.number();
        cells.add(block.bytes, block.live);
        let last = if cells.used == 0 { cells.number().saturating_sub(1) } else { cells.number() };
        cells.of_block.push([first, last]);
        end = Some(block.addr.offset(block.bytes));
    }
    cells.close();
    cells
}

struct Cells {
    text: String,
    /// The first and the last cell of each block.
    of_block: Vec<[u32; 2]>,
    cell_bytes: u64,
    /// Bytes of the cell that is being filled.
    used: u64,
    /// How many of them are live.
    live: u64,
}

impl Cells {
    /// Returns the number of the cell that is being filled.
    fn number(&self) -> u32 {
        u32::try_from(self.text.len()).unwrap_or(u32::MAX)
    }

    fn add(&mut self, mut bytes: u64, live: bool) {
        while bytes > 0 {
            let part = bytes.min(self.cell_bytes - self.used);
            self.used += part;
            self.live += if live { part } else { 0 };
            bytes -= part;
            if self.used == self.cell_bytes {
                self.close();
            }
        }
    }

    fn close(&mut self) {
        if self.used == 0 {
            return;
        }
        let shade = match self.live {
            0 => 0,
            live if live == self.used => 9,
            live => 1 + u8::try_from(u128::from(live) * 8 / u128::from(self.used)).unwrap_or(7).min(7),
        };
        self.text.push(char::from(b'0' + shade));
        (self.used, self.live) = (0, 0);
    }
}

/// Most cells of a map, separators included.
pub(super) const MOST_CELLS: usize = 4096;
/// The smallest cell.
const LEAST_CELL_BYTES: u64 = 64 * KIB;
const GAP: u8 = b'|';

#[cfg(test)]
mod tests {
    use super::*;
    use gapless::units::MIB;

    fn block(addr: u64, bytes: u64, live: bool) -> HeldBlock {
        HeldBlock { addr: DeviceAddr(addr), bytes, live }
    }

    #[test]
    fn cells_show_how_much_of_them_is_live() {
        let k = LEAST_CELL_BYTES;
        let blocks = vec![
            block(2 * k, k / 2, false),
            block(0, 2 * k, true),
            block(2 * k + k / 2, k / 2, true),
            block(9 * k, 2 * k, false),
        ];
        let map = AddressMap::of(7, blocks, &[DeviceAddr(0), DeviceAddr(2 * k + k / 2), DeviceAddr(7)]);
        assert_eq!(map.blocks, [Some([0, 1]), Some([2, 2]), None]);
        assert_eq!((map.op, map.cell_bytes, map.cells.as_str()), (7, k, "995|00"));
        assert_eq!((map.live_bytes, map.free_bytes), (2 * k + k / 2, 2 * k + k / 2));
        assert_eq!((map.largest_free_bytes, map.free_runs), (2 * k, 2));
        assert_eq!(AddressMap::of(0, Vec::new(), &[]).cells, "");
    }

    #[test]
    fn a_run_of_free_bytes_ends_at_a_live_block_and_at_a_gap() {
        let blocks = vec![block(0, MIB, false), block(MIB, MIB, false), block(3 * MIB, MIB, false)];
        let map = AddressMap::of(0, blocks, &[]);
        assert_eq!((map.largest_free_bytes, map.free_runs), (2 * MIB, 2));
    }

    #[test]
    fn the_number_of_cells_is_bounded() {
        let one = AddressMap::of(0, vec![block(0, 4 << 40, true)], &[]);
        assert!(one.cells.len() <= MOST_CELLS && one.cells.len() > MOST_CELLS / 4, "{}", one.cells.len());
        for step in [512, 1 << 12, 1 << 21, 1 << 30] {
            let apart: Vec<_> = (0..100_000).map(|index| block(index * 2 * step, step, index % 2 == 0)).collect();
            let map = AddressMap::of(0, apart, &[]);
            assert!(map.cells.len() <= MOST_CELLS, "{step}: {}", map.cells.len());
            assert_eq!(map.free_runs, 50_000);
        }
    }
}
