//! What a grid holds: the overheads of a cell at neighbouring rooms.

use super::sums::STRIDE;

/// Rooms that are solved together.
pub(super) const LANES: usize = 64;

/// An overhead that is too large, or a room that is too small.
pub(super) const NONE: u16 = u16::MAX;

/// The overheads of a cell at neighbouring rooms, in units of the scale. They never rise. Aligned, so that it is two
/// cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Row(pub(super) [u16; LANES]);

impl Row {
    pub(super) const NONE: Self = Self([NONE; LANES]);
    pub(super) const ZERO: Self = Self([0; LANES]);

    /// The lanes from `first` on of two rows side by side.
    #[inline(always)]
    pub(super) fn between(lower: &Self, upper: &Self, first: usize) -> Self {
        let mut both = [0; 2 * LANES];
        both[..LANES].copy_from_slice(&lower.0);
        both[LANES..].copy_from_slice(&upper.0);
        let mut row = Self::NONE;
        row.0.copy_from_slice(&both[first..first + LANES]);
        row
    }

    /// Lowers each lane from `from` on to what another row says, and something more.
    #[inline(always)]
    pub(super) fn lower(&mut self, from: usize, other: &Self, more: u16) {
        // Every lane is computed: that is one instruction for many of them, and a loop over some is not.
        for lane in 0..LANES {
            let sum = other.0[lane].saturating_add(more);
            let sum = if lane < from { NONE } else { sum };
            self.0[lane] = self.0[lane].min(sum);
        }
    }

    /// Says that there is no room in the lanes before `start`.
    #[inline(always)]
    pub(super) fn begin_at(&mut self, start: usize) {
        for lane in 0..LANES {
            self.0[lane] = if lane < start { NONE } else { self.0[lane] };
        }
    }
}

/// The rows of the different cells that end at one boundary, in one chunk. The shortest cell comes first.
///
/// Short cells have room to keep everything and long ones have no room at all: neither is held.
#[derive(Clone, Debug, Default)]
pub(super) struct Column {
    /// How many cells at the beginning keep everything.
    enough: usize,
    rows: Vec<Row>,
    /// How many cells after them have no room.
    too_small: usize,
}

impl Column {
    pub(super) fn clear(&mut self) {
        (self.enough, self.too_small) = (0, 0);
        self.rows.clear();
    }

    /// Adds a cell that has no room.
    pub(super) fn push_too_small(&mut self) {
        self.too_small += 1;
    }

    /// Adds a cell that keeps everything.
    pub(super) fn push_enough(&mut self) {
        match self.rows.is_empty() && self.too_small == 0 {
            true => self.enough += 1,
            false => self.push_row(&Row::ZERO),
        }
    }

    /// Adds a cell.
    #[inline(always)]
    pub(super) fn push(&mut self, row: &Row) {
        // More room never costs more: the first lane tells whether all are nothing.
        match row.0[0] == 0 {
            true => self.push_enough(),
            false => self.push_row(row),
        }
    }

    #[inline(always)]
    fn push_row(&mut self, row: &Row) {
        for _ in 0..std::mem::take(&mut self.too_small) {
            self.rows.push(Row::NONE);
        }
        self.rows.push(*row);
    }

    /// The row of a cell.
    #[inline(always)]
    pub(super) fn get(&self, cell: usize) -> &Row {
        match cell.checked_sub(self.enough) {
            None => &Row::ZERO,
            Some(row) => self.rows.get(row).unwrap_or(&Row::NONE),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.rows.len() * size_of::<Row>() + size_of::<Self>()) as u64
    }
}

/// Half of the lanes: a cache line.
pub(super) const HALF: usize = LANES / 2;

/// Rows that are read again and again while a chunk is solved, and the least overhead in each half of them.
pub(super) struct Rows {
    pub(super) rows: Vec<Row>,
    /// Those of the lower halves, and those of the upper halves.
    pub(super) least: [Vec<u16>; 2],
}

impl Rows {
    pub(super) fn none(count: usize) -> Self {
        // Least overheads are read a stride at a time.
        let least = vec![NONE; count + STRIDE];
        Self { rows: vec![Row::NONE; count], least: [least.clone(), least] }
    }

    #[inline(always)]
    pub(super) fn set(&mut self, number: usize, row: &Row) {
        self.rows[number] = *row;
        self.least[0][number] = row.0[HALF - 1];
        self.least[1][number] = row.0[LANES - 1];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_a_column_are_found_whatever_order_they_come_in() {
        let row = Row([7; LANES]);
        let pushes: [&[Option<&Row>]; 4] = [
            &[Some(&Row::ZERO), Some(&row), None, None],
            &[None, Some(&Row::ZERO), None, Some(&row), Some(&Row::ZERO)],
            &[Some(&row), None, Some(&row), None],
            &[Some(&Row::ZERO), Some(&Row::ZERO), None, Some(&row)],
        ];
        for pushes in pushes {
            let mut column = Column::default();
            for push in pushes {
                match push {
                    Some(row) => column.push(row),
                    None => column.push_too_small(),
                }
            }
            for (cell, push) in pushes.iter().enumerate() {
                assert_eq!(column.get(cell).0, push.unwrap_or(&Row::NONE).0);
            }
        }
    }
}
