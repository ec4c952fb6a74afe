//! Which of a stream's further regions have a free block of some size: the first one is found without a look at the others.
//!
//! - I1  the index has the size of the largest free block of every region, but for those noted as touched.
//!
//! Cost: O(log regions) for a search and for each region touched since the one before.

/// The largest free block of each region, as a tree of maxima over them.
#[derive(Debug, Default)]
pub struct Roomy {
    /// The root is number 1, the children of `n` are `2n` and `2n + 1`; the last `leaves` are the regions'.
    largest: Vec<u64>,
    leaves: usize,
    /// Regions that may have changed since their leaves were written.
    touched: Vec<usize>,
    is_touched: Vec<bool>,
}

impl Roomy {
    /// Notes that region number `region`, new or not, may have changed.
    #[inline]
    pub fn touch(&mut self, region: usize) {
        if self.is_touched.len() <= region {
            self.is_touched.resize(region + 1, false);
        }
        if !std::mem::replace(&mut self.is_touched[region], true) {
            self.touched.push(region);
        }
    }

    /// Writes the leaves of the regions that were touched. `largest` tells the largest free block of a region.
    pub fn refresh(&mut self, largest: impl Fn(usize) -> u64) {
        while let Some(region) = self.touched.pop() {
            self.is_touched[region] = false;
            if region >= self.leaves {
                self.grow(region + 1);
            }
            let mut node = self.leaves + region;
            self.largest[node] = largest(region);
            while node > 1 {
                node /= 2;
                let max = self.largest[2 * node].max(self.largest[2 * node + 1]);
                if self.largest[node] == max {
                    break;
                }
                self.largest[node] = max;
            }
        }
    }

    /// The first region from number `from` on with a free block of `size` bytes or more.
    pub fn first_from(&self, from: usize, size: u64) -> Option<usize> {
        if from >= self.leaves {
            return None;
        }
        // Up to the first subtree to the right that has one, and down again.
        let mut node = self.leaves + from;
        while self.largest[node] < size {
            while node % 2 == 1 {
                node /= 2;
            }
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < self.leaves {
            node *= 2;
            if self.largest[node] < size {
                node += 1;
            }
        }
        Some(node - self.leaves)
    }

    fn grow(&mut self, regions: usize) {
        let leaves = regions.next_power_of_two();
        let mut largest = vec![0; 2 * leaves];
        let before = self.largest.get(self.leaves..).unwrap_or_default();
        largest[leaves..leaves + before.len()].copy_from_slice(before);
        for node in (1..leaves).rev() {
            largest[node] = largest[2 * node].max(largest[2 * node + 1]);
        }
        (self.largest, self.leaves) = (largest, leaves);
    }

    /// Asserts I1.
    ///
    /// # Panics
    /// Panics if the invariant does not hold.
    pub fn check(&self, regions: usize, largest: impl Fn(usize) -> u64) {
        for region in (0..regions).filter(|region| !self.is_touched[*region]) {
            let noted = self.largest[self.leaves + region];
            assert_eq!(noted, largest(region), "I1: the largest free block of further region {region}");
        }
        for node in 1..self.leaves {
            let max = self.largest[2 * node].max(self.largest[2 * node + 1]);
            assert_eq!(self.largest[node], max, "I1: the maximum of node {node}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Break, assert_noticed};

    #[test]
    fn the_first_region_with_room_is_found() {
        let mut sizes: Vec<u64> = Vec::new();
        let mut roomy = Roomy::default();
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        assert_eq!(roomy.first_from(0, 1), None);
        for _ in 0..2000 {
            let region = next((sizes.len() as u64 + 1).min(70)) as usize;
            sizes.resize(sizes.len().max(region + 1), 0);
            sizes[region] = next(20);
            roomy.touch(region);
            roomy.check(sizes.len(), |region| sizes[region]);
            roomy.refresh(|region| sizes[region]);
            roomy.check(sizes.len(), |region| sizes[region]);
            let (from, size) = (next(80) as usize, next(20) + 1);
            let expected = (from..sizes.len()).find(|region| sizes[*region] >= size);
            assert_eq!(roomy.first_from(from, size), expected, "from {from}, {size} of {sizes:?}");
        }
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<Roomy>] = &[
            ("I1: the largest free block of further region 1", |roomy| roomy.largest[roomy.leaves + 1] = 7),
            ("I1: the maximum of node 1", |roomy| roomy.largest[1] = 7),
        ];
        let roomy = || {
            let mut roomy = Roomy::default();
            (0..3).for_each(|region| roomy.touch(region));
            roomy.refresh(|region| region as u64);
            roomy
        };
        assert_noticed(roomy, |roomy| roomy.check(3, |region| region as u64), breaks);
    }
}
