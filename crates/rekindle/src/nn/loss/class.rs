//! What each row of a loss is held against.

/// The class of a row, or none where the row is ignored. A row of every step keeps one from the forward to the backward: four bytes,
/// where `Option<usize>` has sixteen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(u32);

impl Class {
    pub(super) const IGNORED: Self = Self(u32::MAX);

    /// The class of a target; none where it is not one of `classes`.
    pub(super) fn of(target: i64, classes: usize) -> Option<Self> {
        let class = u32::try_from(target).ok()?;
        (class != u32::MAX && usize::try_from(class).is_ok_and(|class| class < classes))
            .then_some(Self(class))
    }

    #[inline(always)]
    pub(super) fn get(self) -> Option<usize> {
        (self != Self::IGNORED).then_some(self.0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_below_their_number_and_takes_four_bytes() {
        assert_eq!(size_of::<Class>(), 4);
        assert_eq!(Class::of(7, 8).and_then(Class::get), Some(7));
        assert_eq!(Class::IGNORED.get(), None);
        for (target, classes) in
            [(8, 8), (-1, 8), (0, 0), (i64::MAX, usize::MAX), (i64::from(u32::MAX), usize::MAX)]
        {
            assert_eq!(Class::of(target, classes), None, "{target} of {classes}");
        }
    }
}
