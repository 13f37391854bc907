//! Patterns over the names of stages.

use std::fmt;
use std::sync::Arc;

/// A name with wildcards.
///
/// Names are parts with dots between them. `*` stands for anything within one part, `**` as a whole part for any number
/// of parts, none included; `*` alone is `**`.
///
/// ```
/// use rekindle_plan::policy::Pattern;
///
/// assert!(Pattern::from("block.*.attention").matches("block.3.attention"));
/// assert!(!Pattern::from("block.*").matches("block.3.attention"));
/// assert!(Pattern::from("**.attention").matches("block.3.attention"));
/// assert!(Pattern::from("block.1*").matches("block.12"));
/// assert!(Pattern::from("*").matches("block.3.attention"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern(Arc<str>);

impl Pattern {
    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the pattern fits the whole of a name.
    pub fn matches(&self, name: &str) -> bool {
        &*self.0 == "*" || parts_match(&self.0, name)
    }

    /// The same for the part of a pattern before `.input`, where `*` is one part even when it is alone.
    pub(super) fn matches_as_part(&self, name: &str) -> bool {
        parts_match(&self.0, name)
    }

    /// The side of a stage that the pattern names, and the pattern of the stage: `block.*` of `block.*.input`.
    pub(super) fn side(&self) -> Option<(&'static str, Self)> {
        [".input", ".output"].into_iter().find_map(|side| {
            let stage = self.0.strip_suffix(side).filter(|stage| !stage.is_empty())?;
            Some((side, Self(stage.into())))
        })
    }
}

impl From<&str> for Pattern {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Pattern {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        super::text::write_word(formatter, &self.0)
    }
}

fn parts_match(pattern: &str, name: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('.').collect();
    let name: Vec<&str> = name.split('.').collect();
    fits(&pattern, &name, |part| *part == "**", |part, found| part_matches(part, found))
}

fn part_matches(pattern: &str, part: &str) -> bool {
    fits(pattern.as_bytes(), part.as_bytes(), |byte| *byte == b'*', |byte, found| byte == found)
}

/// Whether a pattern fits all of a text, in steps of at most their lengths' product.
///
/// A star first takes nothing; when what follows fails, the last star takes one more. Earlier stars need not be tried
/// again: what the last one can reach from an earlier start, it can reach from here.
fn fits<P, T>(pattern: &[P], text: &[T], star: impl Fn(&P) -> bool, same: impl Fn(&P, &T) -> bool) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut last_star = None;
    while let Some(found) = text.get(read) {
        match pattern.get(at) {
            Some(part) if star(part) => {
                at += 1;
                last_star = Some((at, read));
            }
            Some(part) if same(part, found) => {
                at += 1;
                read += 1;
            }
            _ => match &mut last_star {
                Some((after, taken)) => {
                    *taken += 1;
                    (at, read) = (*after, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(star)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::from(pattern).matches(name)
    }

    #[test]
    fn a_star_stays_within_one_part() {
        assert!(matches("block.*", "block.0"));
        assert!(matches("*.up", "block.up"));
        assert!(matches("block.*.up", "block.10.up"));
        assert!(!matches("block.*", "block"));
        assert!(!matches("block.*", "block.0.up"));
        assert!(!matches("block.*.up", "block.0.down"));
        assert!(!matches("*.*", "block"));
    }

    #[test]
    fn a_star_can_be_a_piece_of_a_part() {
        assert!(matches("b*k.*1", "block.21"));
        assert!(matches("a*b*c", "axbxbc"));
        assert!(matches("*", ""));
        assert!(!matches("a*b*c", "axcxb"));
        assert!(!matches("block.1*", "block.21"));
        assert!(matches("caf*", "café"));
    }

    #[test]
    fn two_stars_are_any_number_of_parts_and_one_alone_is_everything() {
        for pattern in ["*", "**", "**.**"] {
            assert!(matches(pattern, "block.0.up") && matches(pattern, "head"), "{pattern}");
        }
        assert!(matches("**.up", "up") && matches("**.up", "block.0.up"));
        assert!(matches("block.**", "block") && matches("block.**", "block.0.up"));
        assert!(matches("**.0.**.up", "block.0.a.0.b.up"));
        assert!(!matches("**.up", "block.0.upper"));
        assert!(!matches("block.**.up", "stem.0.up"));
    }

    #[test]
    fn a_pattern_without_stars_is_one_name() {
        assert!(matches("block.0", "block.0"));
        assert!(!matches("block.0", "block.00"));
        assert!(!matches("", "head"));
    }

    /// Backtracking over every star would not end here.
    #[test]
    fn many_stars_against_a_long_name_take_no_time() {
        let name = "a".repeat(10_000);
        assert!(!matches(&"a*".repeat(50).replace("**", "*"), &format!("{name}.b")));
        assert!(!matches(&format!("{}b", "*a".repeat(50)), &name));
        assert!(!matches(&format!("{}b", "**.a.".repeat(50)), &"a.".repeat(2_000)));
    }

    #[test]
    fn the_side_of_a_stage_is_told_from_its_name() {
        let side = |text: &str| Pattern::from(text).side().map(|(side, stage)| (side, stage.to_string()));
        assert_eq!(side("block.*.input"), Some((".input", "block.*".to_owned())));
        assert_eq!(side("head.output"), Some((".output", "head".to_owned())));
        assert_eq!(side("head"), None);
        assert_eq!(side("input"), None);
        assert_eq!(side(".input"), None);
    }
}
