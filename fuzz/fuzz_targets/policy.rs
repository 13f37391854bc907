//! Any text is a policy or refused; a policy prints as text that parses back, and has on any profile a plan that the
//! judge accepts, or an error.
//!
//! The input is the profile's JSON, a line `---`, and the policy.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rekindle_plan::{Policy, Profile};

fuzz_target!(|text: &str| {
    let Some((profile, text)) = text.split_once("\n---\n") else {
        return;
    };
    let policy: Policy = match text.parse() {
        Ok(policy) => policy,
        Err(error) => return assert!(error.to_string().contains("expected")),
    };
    assert_eq!(policy.to_string().parse().as_ref(), Ok(&policy));
    let Ok(profile) = Profile::from_json(profile) else {
        return;
    };
    match policy.plan(&profile) {
        Ok(plan) => {
            plan.judge(&profile).expect("a policy's plan is legal");
            let idle = policy.idle(&profile).expect("it has a plan");
            assert!(idle.len() <= policy.clauses().len());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
