//! The names a policy can use for a profile.

use std::fmt;

use crate::{Boundary, Profile, Stage};

/// A stage by its name, or stages that follow each other by what their names begin with: `block.3` names the stage of
/// this name, and the stages `block.3.qkv` to `block.3.down` together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Named<'a> {
    /// The name.
    pub name: &'a str,
    /// The first of the stages.
    pub first: Stage,
    /// The last of them.
    pub last: Stage,
}

impl Named<'_> {
    /// The boundary its first stage reads, `NAME.input`.
    pub const fn input(&self) -> Boundary {
        self.first.input()
    }

    /// The boundary its last stage makes, `NAME` or `NAME.output`.
    pub const fn output(&self) -> Boundary {
        self.last.output()
    }
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name)
    }
}

/// All names of a profile, in the order of its stages, a whole before its parts.
pub(super) fn names(profile: &Profile) -> Vec<Named<'_>> {
    let stages = profile.stages();
    let mut names = Vec::new();
    let mut before = "";
    for (index, stage) in stages.iter().enumerate() {
        let name = stage.name.as_str();
        let dots = name.char_indices().filter(|(at, letter)| *letter == '.' && *at > 0);
        for (dot, _) in dots {
            let start = &name[..=dot];
            if before.starts_with(start) {
                continue;
            }
            let count = stages[index..].iter().take_while(|stage| stage.name.starts_with(start)).count();
            names.push(Named {
                name: &name[..dot],
                first: Stage::at(index),
                last: Stage::at(index + count - 1),
            });
        }
        names.push(Named { name, first: Stage::at(index), last: Stage::at(index) });
        before = name;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(names: &[&str]) -> Profile {
        Profile::unmeasured(names.iter().map(|name| (*name).to_owned()), &[]).unwrap()
    }

    fn shown(profile: &Profile) -> Vec<String> {
        let names = names(profile).into_iter();
        names.map(|named| format!("{named} {} {}", named.input(), named.output())).collect()
    }

    #[test]
    fn what_stages_begin_with_names_them_together() {
        let profile = profile(&["embedding", "block.0.up", "block.0.down", "block.1.up", "head"]);
        let expected = [
            "embedding x0 x1",
            "block x1 x4",
            "block.0 x1 x3",
            "block.0.up x1 x2",
            "block.0.down x2 x3",
            "block.1 x3 x4",
            "block.1.up x3 x4",
            "head x4 x5",
        ];
        assert_eq!(shown(&profile), expected);
    }

    #[test]
    fn stages_that_do_not_follow_each_other_are_not_one() {
        let profile = profile(&["tower.a", "join", "tower.b", "towering"]);
        let expected =
            ["tower x0 x1", "tower.a x0 x1", "join x1 x2", "tower x2 x3", "tower.b x2 x3", "towering x3 x4"];
        assert_eq!(shown(&profile), expected);
    }

    #[test]
    fn dots_in_odd_places_and_one_name_twice_are_names_like_others() {
        assert_eq!(shown(&profile(&[".a", "a..b"])), [".a x0 x1", "a x1 x2", "a. x1 x2", "a..b x1 x2"]);
        assert_eq!(shown(&profile(&["a", "a"])), ["a x0 x1", "a x1 x2"]);
        assert_eq!(shown(&profile(&["é.ü", "é.ö"])), ["é x0 x2", "é.ü x0 x1", "é.ö x1 x2"]);
    }
}
