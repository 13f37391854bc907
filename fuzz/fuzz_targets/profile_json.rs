//! Any text is a profile or an error; a profile writes and reads back, and every rule can be judged on it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rekindle_plan::{Plan, Profile, Rule};

fuzz_target!(|text: &str| {
    let profile = match Profile::from_json(text) {
        Ok(profile) => profile,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(Profile::from_json(&profile.to_json()), Ok(profile.clone()));
    for rule in [
        Rule::StoreAll,
        Rule::Full,
        Rule::EVERY_ONE,
        Rule::SquareRoot,
    ] {
        // Pinned stages and sizes near 2^64 are refused; what is not refused fits its own profile.
        if let Ok(plan) = Plan::by_rule(&profile, rule, None) {
            assert!(plan.judge(&profile).is_ok());
            assert!(plan.predicted.step_ns >= profile.lower_bound());
        }
    }
});
