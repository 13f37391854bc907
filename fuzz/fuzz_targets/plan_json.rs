//! Any text is a plan or an error; a plan writes and reads back as what it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rekindle_plan::Plan;

fuzz_target!(|text: &str| {
    match Plan::from_json(text) {
        // Not the status: its gap is a float, and its last bit is not promised to survive.
        Ok(plan) => {
            let again = Plan::from_json(&plan.to_json()).expect("a plan reads back");
            assert_eq!(again.actions, plan.actions);
            assert_eq!(again.predicted, plan.predicted);
            assert_eq!(again.fingerprint, plan.fingerprint);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
