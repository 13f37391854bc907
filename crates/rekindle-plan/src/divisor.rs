//! What divides numbers.

/// The largest number that divides both; of zero and another, the other.
pub(crate) fn greatest_common_divisor(mut left: u64, mut right: u64) -> u64 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}
