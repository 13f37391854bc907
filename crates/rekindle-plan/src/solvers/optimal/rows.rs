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
    pub(super) fn between(lower: Wide<'_>, upper: Wide<'_>, first: usize) -> Self {
        // The rows lie apart. Each is read as if the other lay beside it, and the lanes that are not its own are left out:
        // to write both side by side first and to read across the two would have to wait for what was just written.
        let lower = &lower.0[LANES + first..][..LANES];
        let upper = &upper.0[first..][..LANES];
        let ours = &OURS[first..][..LANES];
        let mut row = Self::NONE;
        for lane in 0..LANES {
            row.0[lane] = (lower[lane] & ours[lane]) | (upper[lane] & !ours[lane]);
        }
        row
    }

    /// Lowers each lane from `from` on to what another row says, and something more.
    #[inline(always)]
    pub(super) fn lower(&mut self, from: usize, other: &Self, more: u16) {
        // Every lane is computed: that is one instruction for many of them, and a loop over some is not.
        for (lane, number) in NUMBERS.into_iter().enumerate() {
            let sum = other.0[lane].saturating_add(more);
            let sum = if number < from as u16 { NONE } else { sum };
            self.0[lane] = self.0[lane].min(sum);
        }
    }

    /// Says that there is no room in the lanes before `start`.
    #[inline(always)]
    pub(super) fn begin_at(&mut self, start: usize) {
        for (lane, number) in NUMBERS.into_iter().enumerate() {
            self.0[lane] = if number < start as u16 { NONE } else { self.0[lane] };
        }
    }
}

/// All bits of a row, and none of the next.
const OURS: [u16; 2 * LANES] = {
    let mut ours = [0; 2 * LANES];
    let mut lane = 0;
    while lane < LANES {
        ours[lane] = u16::MAX;
        lane += 1;
    }
    ours
};

/// The numbers of the lanes, in as many bits as what is in them.
const NUMBERS: [u16; LANES] = {
    let mut numbers = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        numbers[lane] = lane as u16;
        lane += 1;
    }
    numbers
};

/// A row and as many lanes on either side of it that mean nothing.
#[derive(Clone, Copy)]
pub(super) struct Wide<'a>(&'a [u16]);

impl<'a> Wide<'a> {
    pub(super) const NONE: Self = Self(&[NONE; 3 * LANES]);
    pub(super) const ZERO: Self = Self(&[0; 3 * LANES]);

    /// The row that begins at `at`.
    #[inline(always)]
    fn of(lanes: &'a [u16], at: usize) -> Self {
        Self(&lanes[at - LANES..][..3 * LANES])
    }

    pub(super) fn lanes(self) -> &'a [u16] {
        &self.0[LANES..2 * LANES]
    }
}

/// The rows of the different cells that end at one boundary, in one chunk. The shortest cell comes first.
///
/// Short cells have room to keep everything and long ones have no room at all: neither is held.
#[derive(Clone, Debug, Default)]
pub(super) struct Column {
    /// How many cells at the beginning keep everything.
    enough: usize,
    /// Rows side by side, between two that mean nothing.
    lanes: Vec<u16>,
    /// How many cells after them have no room.
    too_small: usize,
}

impl Column {
    pub(super) fn clear(&mut self) {
        (self.enough, self.too_small) = (0, 0);
        self.lanes.clear();
    }

    /// Adds a cell that has no room.
    pub(super) fn push_too_small(&mut self) {
        self.too_small += 1;
    }

    /// Adds a cell that keeps everything.
    pub(super) fn push_enough(&mut self) {
        match self.lanes.is_empty() && self.too_small == 0 {
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
        if self.lanes.is_empty() {
            self.lanes.extend([NONE; LANES]);
        }
        for _ in 0..std::mem::take(&mut self.too_small) {
            self.lanes.extend([NONE; LANES]);
        }
        self.lanes.extend(row.0);
    }

    /// What was added, in no more memory than it takes.
    pub(super) fn done(&self) -> Self {
        let (enough, too_small) = (self.enough, self.too_small);
        if self.lanes.is_empty() {
            return Self { enough, too_small, lanes: Vec::new() };
        }
        let mut lanes = Vec::with_capacity(self.lanes.len() + LANES);
        lanes.extend_from_slice(&self.lanes);
        lanes.extend([NONE; LANES]);
        Self { enough, too_small, lanes }
    }

    /// The row of a cell, of a column that is done.
    #[inline(always)]
    pub(super) fn get(&self, cell: usize) -> Wide<'_> {
        if cell < self.enough {
            return Wide::ZERO;
        }
        let from = (cell - self.enough) * LANES;
        match self.lanes.get(from..from + 3 * LANES) {
            Some(lanes) => Wide(lanes),
            None => Wide::NONE,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        (size_of_val(&self.lanes[..]) + size_of::<Self>()) as u64
    }
}

/// Half of the lanes: a cache line.
pub(super) const HALF: usize = LANES / 2;

/// Rows that are read again and again while a chunk is solved, and the least overhead in each half of them.
pub(super) struct Rows {
    /// Rows side by side, between two that mean nothing.
    lanes: Vec<u16>,
    /// Where they begin: each is two cache lines.
    from: usize,
    /// Those of the lower halves, and those of the upper halves.
    pub(super) least: [Vec<u16>; 2],
}

impl Rows {
    pub(super) fn none(count: usize) -> Self {
        // Least overheads are read a stride at a time.
        let least = vec![NONE; count + STRIDE];
        let lanes = vec![NONE; (count + 3) * LANES];
        let aligned = lanes[LANES..].as_ptr().align_offset(align_of::<Row>());
        Self { from: LANES + aligned.min(LANES), lanes, least: [least.clone(), least] }
    }

    #[inline(always)]
    pub(super) fn set(&mut self, number: usize, row: &Row) {
        self.lanes[self.from + number * LANES..][..LANES].copy_from_slice(&row.0);
        self.least[0][number] = row.0[HALF - 1];
        self.least[1][number] = row.0[LANES - 1];
    }

    /// A row with what is beside it.
    #[inline(always)]
    pub(super) fn wide(&self, number: usize) -> Wide<'_> {
        Wide::of(&self.lanes, self.from + number * LANES)
    }

    /// The lower or the upper half of a row.
    #[inline(always)]
    pub(super) fn half<const UPPER: usize>(&self, number: u32) -> &[u16] {
        &self.lanes[self.from + number as usize * LANES + UPPER * HALF..][..HALF]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_two_rows_is_of_both() {
        let row = |from: u16| Row(std::array::from_fn(|lane| from + lane as u16));
        let mut rows = Rows::none(4);
        (0..4).for_each(|number| rows.set(number, &row(1_000 * number as u16)));
        for (lower, upper) in [(0, 3), (3, 0), (1, 2), (2, 2)] {
            for first in 0..=LANES {
                let both = [row(1_000 * lower as u16).0, row(1_000 * upper as u16).0].concat();
                let between = Row::between(rows.wide(lower), rows.wide(upper), first);
                assert_eq!(between.0, both[first..first + LANES]);
            }
        }
    }

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
            let column = column.done();
            for (cell, push) in pushes.iter().enumerate() {
                assert_eq!(column.get(cell).lanes(), push.unwrap_or(&Row::NONE).0);
            }
        }
    }
}
