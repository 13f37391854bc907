//! Names that were probably meant.

/// The known name most like `found`, when one is like it at all: of several as alike, the first.
///
/// ```
/// use rekindle_plan::nearest;
///
/// assert_eq!(nearest("selectiv", ["full", "selective"]), Some("selective"));
/// assert_eq!(nearest("everything", ["full", "selective"]), None);
/// ```
pub fn nearest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // As alike as clap asks for before it suggests a flag.
    let enough = 0.7;
    let alike = known.into_iter().map(|name| (strsim::jaro(found, name), name));
    let better = |best: (f64, &'a str), other: (f64, &'a str)| if other.0 > best.0 { other } else { best };
    alike.reduce(better).filter(|(likeness, _)| *likeness > enough).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_of_the_finger_is_understood_and_another_word_is_not() {
        let known = ["budget", "batch", "steps"];
        assert_eq!(nearest("bugdet", known), Some("budget"));
        assert_eq!(nearest("step", known), Some("steps"));
        assert_eq!(
            nearest("block.*.atention", ["block.0.attention", "block.1.attention"]),
            Some("block.0.attention")
        );
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest("steps", []), None);
    }
}
