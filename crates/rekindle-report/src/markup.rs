//! HTML and SVG that cannot be broken by what users call their stages.

use std::collections::HashMap;
use std::fmt::{self, Display, Write};

/// Markup under construction. Text and attributes only get in through the escaping methods; names of elements and
/// attributes are words of this crate.
///
/// What comes out is well-formed XML, so that a page can be parsed by any reader of either language.
#[derive(Default)]
pub(crate) struct Markup(String);

/// The attributes of an element.
pub(crate) type Attributes<'a> = &'a [(&'static str, &'a dyn Display)];

impl Markup {
    /// Opens an element.
    pub(crate) fn open(&mut self, name: &'static str, attributes: Attributes<'_>) -> &mut Self {
        self.start(name, attributes);
        self.0.push('>');
        self
    }

    /// Closes an element.
    pub(crate) fn close(&mut self, name: &'static str) -> &mut Self {
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
        self
    }

    /// An element with nothing inside, such as `meta` or `path`.
    pub(crate) fn empty(&mut self, name: &'static str, attributes: Attributes<'_>) -> &mut Self {
        self.start(name, attributes);
        self.0.push_str("/>");
        self
    }

    /// Text.
    pub(crate) fn text(&mut self, text: impl Display) -> &mut Self {
        // Writing to a string does not fail.
        let _ = write!(Escaping(&mut self.0), "{text}");
        self
    }

    /// An element with text inside.
    pub(crate) fn element(
        &mut self,
        name: &'static str,
        attributes: Attributes<'_>,
        text: impl Display,
    ) -> &mut Self {
        self.open(name, attributes).text(text).close(name)
    }

    /// What this crate wrote itself: other markup, its style and its script.
    pub(crate) fn own(&mut self, markup: &str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// A new line, for people who read the source.
    pub(crate) fn line(&mut self) -> &mut Self {
        self.0.push('\n');
        self
    }

    /// What was written.
    pub(crate) fn finish(self) -> String {
        self.0
    }

    fn start(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.0.push('<');
        self.0.push_str(name);
        for (key, value) in attributes {
            self.0.push(' ');
            self.0.push_str(key);
            self.0.push_str("=\"");
            self.text(value);
            self.0.push('"');
        }
    }
}

struct Escaping<'a>(&'a mut String);

impl Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\t' | '\n' => self.0.push(letter),
                // XML has no way to write these, and a direction that a name turns around would turn the page.
                '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    self.0.push('\u{fffd}');
                }
                _ if letter.is_control() => self.0.push('\u{fffd}'),
                _ => self.0.push(letter),
            }
        }
        Ok(())
    }
}

/// A coordinate: two decimals are a hundredth of a pixel.
pub(crate) struct Px(pub(crate) f64);

impl Display for Px {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.2}", self.0);
        let short = text.trim_end_matches('0').trim_end_matches('.');
        formatter.write_str(if short == "-0" { "0" } else { short })
    }
}

/// Labels with room for `most` letters each, for names in their order. Names that differ have labels that differ: where shortening would
/// make them alike, they are numbered from 1.
pub(crate) fn distinct<'a>(names: impl Iterator<Item = &'a str>, most: usize) -> Vec<String> {
    let names: Vec<&str> = names.collect();
    let fit = names.iter().all(|name| name.chars().count() <= most);
    // What a label stands for, and whether for another name as well.
    let mut known: HashMap<String, (&str, bool)> = HashMap::new();
    let mut labels = Vec::with_capacity(names.len());
    for name in &names {
        let label = if fit { (*name).to_owned() } else { without_beginning(name, most) };
        known.entry(label.clone()).and_modify(|(of, shared)| *shared |= of != name).or_insert((name, false));
        labels.push(label);
    }
    for ((label, name), number) in labels.iter_mut().zip(&names).zip(1..) {
        if known.get(label).is_some_and(|(_, shared)| *shared) {
            let number = format!("{number} ");
            *label = format!("{number}{}", shortened(name, most.saturating_sub(number.len())));
        }
    }
    labels
}

/// A name without the words before its number, which its neighbours have as well: `3.attention` for `block.3.attention`.
fn without_beginning(name: &str, most: usize) -> String {
    let mut numbered = name.match_indices('.').map(|(at, _)| &name[at + 1..]);
    let numbered = numbered.find(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()));
    match numbered {
        Some(rest) if rest.chars().count() > most => {
            let head: String = rest.chars().take(most.saturating_sub(1)).collect();
            format!("{head}…")
        }
        Some(rest) => rest.to_owned(),
        None => shortened(name, most),
    }
}

/// The ends of a name, for a label with room for `most`.
fn shortened(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    // The end tells blocks apart, the beginning what they are.
    let tail = (most.saturating_sub(1)) / 2;
    let head = most.saturating_sub(1 + tail);
    let letters: Vec<char> = name.chars().collect();
    let start: String = letters[..head].iter().collect();
    let end: String = letters[letters.len() - tail..].iter().collect();
    format!("{start}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &str) -> String {
        let mut markup = Markup::default();
        markup.text(text);
        markup.finish()
    }

    #[test]
    fn nothing_a_name_holds_is_markup() {
        assert_eq!(
            escaped(r#"<script>alert("a&b's")</script>"#),
            "&lt;script&gt;alert(&quot;a&amp;b&#39;s&quot;)&lt;/script&gt;"
        );
        assert_eq!(escaped("\0a\u{1b}[31m\u{202e}b\u{ffff}"), "\u{fffd}a\u{fffd}[31m\u{fffd}b\u{fffd}");
        let mut markup = Markup::default();
        markup.empty("path", &[("d", &"\"/><script>")]);
        assert_eq!(markup.finish(), r#"<path d="&quot;/&gt;&lt;script&gt;"/>"#);
    }

    #[test]
    fn coordinates_are_short() {
        for (number, text) in [(0.0, "0"), (-0.001, "0"), (1.5, "1.5"), (10.0, "10"), (2.0 / 3.0, "0.67")] {
            assert_eq!(Px(number).to_string(), text);
        }
    }

    #[test]
    fn labels_of_names_that_differ_differ() {
        let of = |names: &[&str], most| distinct(names.iter().copied(), most);
        assert_eq!(
            of(&["embedding", "block.7.qkv", "block.3.attention", "block.13.activation"], 11),
            ["embedding", "7.qkv", "3.attention", "13.activat…"]
        );
        let long = ["encoder.left.projection", "encoder.lift.projection", "head"];
        assert_eq!(of(&long, 11), ["1 enco…tion", "2 enco…tion", "head"]);
        assert_eq!(of(&["same", "same"], 4), ["same", "same"], "nothing tells them apart");
        assert_eq!(of(&["block.1.a.long.name", "block.1.a.long.nape"], 9), ["1 blo…ame", "2 blo…ape"]);
        assert_eq!(of(&["abcdef", "abcdeg"], 1), ["1 …", "2 …"]);
    }

    #[test]
    fn a_long_name_keeps_its_ends() {
        assert_eq!(shortened("block.3", 7), "block.3");
        assert_eq!(shortened("encoder.block.31", 9), "enco…k.31");
        assert_eq!(shortened("äöüäöüäöü", 4), "äö…ü");
        assert_eq!(shortened("abc", 1), "…");
        assert_eq!(shortened("abc", 0), "…");
    }
}
