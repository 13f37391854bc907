//! Words on standard error.

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
