//! Which parts of a file are free.

use std::collections::BTreeMap;

/// Regions of a file start and end at multiples of this, as disks and page caches like it.
pub(crate) const ALIGNMENT: u64 = 4096;

/// The free parts of a file: offset to length, never two that touch.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl Extents {
    /// The length the file needs.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The smallest free part that fits, at its beginning.
    pub(crate) fn take(&mut self, length: u64) -> Option<u64> {
        let fitting = self.free.iter().filter(|(_, free)| **free >= length);
        let (offset, free) = fitting.min_by_key(|(_, free)| **free).map(|(offset, free)| (*offset, *free))?;
        self.free.remove(&offset);
        if free > length {
            self.free.insert(offset + length, free - length);
        }
        Some(offset)
    }

    /// By how much the file has to grow before `length` fits: less than `length` when its last part is free.
    pub(crate) fn missing(&self, length: u64) -> u64 {
        let tail = self.free.last_key_value().filter(|(offset, free)| *offset + *free == self.end);
        length.saturating_sub(tail.map_or(0, |(_, free)| *free))
    }

    /// The file has grown.
    pub(crate) fn grow(&mut self, by: u64) {
        let offset = self.end;
        self.end += by;
        self.give(offset, by);
    }

    /// A part is free again.
    pub(crate) fn give(&mut self, mut offset: u64, mut length: u64) {
        if length == 0 {
            return;
        }
        if let Some(next) = self.free.remove(&(offset + length)) {
            length += next;
        }
        if let Some((before, free)) = self.free.range(..offset).next_back().map(|(at, free)| (*at, *free))
            && before + free == offset
        {
            (offset, length) = (before, free + length);
        }
        self.free.insert(offset, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_never_overlap_and_all_comes_back(steps in proptest::collection::vec((0..9u64, any::<bool>()), 1..80)) {
            let mut extents = Extents::default();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (length, give) in steps {
                if give && !taken.is_empty() {
                    let (offset, length) = taken.swap_remove(length as usize % taken.len());
                    extents.give(offset, length);
                } else if length > 0 {
                    let offset = extents.take(length).unwrap_or_else(|| {
                        extents.grow(extents.missing(length));
                        extents.take(length).unwrap()
                    });
                    for (other, size) in &taken {
                        prop_assert!(offset + length <= *other || other + size <= offset);
                    }
                    prop_assert!(offset + length <= extents.end());
                    taken.push((offset, length));
                }
            }
            for (offset, length) in taken {
                extents.give(offset, length);
            }
            prop_assert!(extents.free.len() <= 1);
            prop_assert_eq!(extents.free.values().sum::<u64>(), extents.end());
        }
    }
}
