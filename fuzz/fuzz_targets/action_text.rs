//! Any text is an action or an error that says what was expected; an action prints as text that parses back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rekindle_plan::Action;

fuzz_target!(|text: &str| {
    match text.parse::<Action>() {
        Ok(action) => assert_eq!(action.to_string().parse(), Ok(action)),
        Err(error) => assert!(error.to_string().contains("expected")),
    }
});
