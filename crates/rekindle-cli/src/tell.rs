//! Words for people.

use std::fmt::{self, Write};

/// A line on standard error, for people. `eprintln!` would end the process where nobody reads them, or where the disk that
/// they go to is full: what is done is worth more than what is said about it.
macro_rules! tell {
    ($($words:tt)*) => {{
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr().lock(),
            format_args!("{}\n", format_args!($($words)*)),
        );
    }};
}

/// Words that may have come out of a file. What would move a terminal's cursor or clear its screen is written out.
pub(crate) struct Printable<'a>(pub(crate) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter.is_control() && letter != '\n' && letter != '\t' {
                true => write!(formatter, "{}", letter.escape_default())?,
                false => formatter.write_char(letter)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_clear_a_screen_is_written_out() {
        assert_eq!(Printable("a\u{1b}[2Jb\u{9b}c\rd\u{7f}").to_string(), "a\\u{1b}[2Jb\\u{9b}c\\rd\\u{7f}");
        assert_eq!(Printable("two\nlines,\ta tab, \u{fc}").to_string(), "two\nlines,\ta tab, \u{fc}");
    }
}
