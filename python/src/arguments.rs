//! What people hand over, as numbers: sizes, times, fractions. Each refusal names the argument.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};
use rekindle_plan::{Bytes, Nanos, ParseBytesError, Plan, Profile, Rule, solvers::optimal};

use crate::errors::{Refusal, unsolved};

/// A size: a whole number of bytes, or text such as `64MiB`.
pub(crate) fn size(argument: &'static str, found: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    let refused = |text: String| {
        let hint = format!("give `{argument}` as a whole number of bytes, or as text such as \"64MiB\"");
        PyErr::from(Refusal::from(ParseBytesError { found: text }).hint(hint).part("argument", argument))
    };
    if let Ok(text) = found.cast::<PyString>() {
        let text = text.to_cow()?;
        return text.parse().map_err(|error: ParseBytesError| refused(error.found));
    }
    match whole(argument, "a size: an int, or text such as \"64MiB\"", found)? {
        Some(number) => Ok(Bytes::new(number)),
        None => Err(refused(shown(found))),
    }
}

/// A time in nanoseconds.
pub(crate) fn nanos(argument: &'static str, found: &Bound<'_, PyAny>) -> PyResult<Nanos> {
    match whole(argument, "a time: an int of nanoseconds", found)? {
        Some(number) => Ok(Nanos::new(number)),
        None => Err(not(argument, found, "a time", "whole nanoseconds, from 0 to 2^64 - 1")),
    }
}

/// A number that counts something.
pub(crate) fn count(argument: &'static str, found: &Bound<'_, PyAny>) -> PyResult<u64> {
    match whole(argument, "a number: an int", found)? {
        Some(number) => Ok(number),
        None => Err(not(argument, found, "a count", "a whole number, from 0 to 2^64 - 1")),
    }
}

/// A number of seconds that is not negative.
pub(crate) fn seconds(argument: &'static str, found: &Bound<'_, PyAny>) -> PyResult<std::time::Duration> {
    let number = float(argument, "a number of seconds", found)?;
    // A century is as good as for ever, and still fits into a clock.
    let century = 3.2e9;
    match number.is_nan() || number < 0.0 {
        true => Err(not(argument, found, "a time limit", "seconds from 0")),
        false => Ok(std::time::Duration::from_secs_f64(number.min(century))),
    }
}

/// A fraction from 0, such as `0.05`, or as text `"5%"`.
pub(crate) fn fraction(argument: &'static str, found: &Bound<'_, PyAny>) -> PyResult<f64> {
    let refused = || not(argument, found, "a fraction", "0% to 1000%, such as 5%, or 0.05");
    let (number, most) = match found.cast::<PyString>() {
        Ok(text) => match text.to_cow()?.strip_suffix('%') {
            Some(percent) => (percent.trim().parse::<f64>().map_err(|_| refused())? / 100.0, 10.0),
            None => return Err(refused()),
        },
        // Who writes 5 may mean 5%: without a sign it is less than 1.
        Err(_) => (float(argument, "a fraction", found)?, 1.0 - f64::EPSILON),
    };
    // NaN and infinity are in no range.
    if (0.0..=most).contains(&number) { Ok(number) } else { Err(refused()) }
}

/// What a plan may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Budget {
    Bytes(Bytes),
    /// A part of what keeping everything takes.
    Part(f64),
    /// As little as there is a plan for.
    Smallest,
}

impl Budget {
    /// Reads `"2GiB"`, `2 * 2**30`, `"40%"` or `"smallest"`.
    pub(crate) fn new(found: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(text) = found.cast::<PyString>() {
            let text = text.to_cow()?;
            if text == "smallest" {
                return Ok(Self::Smallest);
            }
            if text.ends_with('%') {
                return fraction("budget", found).map(Self::Part);
            }
            return text.parse().map(Self::Bytes).map_err(|error: ParseBytesError| {
                let words = format!("{error}, or a part of what store-all takes such as 30%, or smallest");
                Refusal::new("SizeError", words).part("found", error.found).part("argument", "budget").into()
            });
        }
        size("budget", found).map(Self::Bytes)
    }

    /// The budget in bytes for a profile.
    pub(crate) fn bytes(self, profile: &Profile) -> Result<Bytes, Refusal> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Part(part) => {
                let all = Plan::by_rule(profile, Rule::StoreAll, None)?.predicted.peak_bytes.get();
                Ok(Bytes::new((all as f64 * part) as u64))
            }
            Self::Smallest => optimal::smallest_budget(profile).map_err(|error| unsolved(error, 0.0)),
        }
    }
}

/// A whole number that is not negative and fits; `None` for any other number.
fn whole(argument: &'static str, expected: &str, found: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    // A float is a number, only not a whole one; a truth is an int for Python, but nobody means it.
    if found.is_instance_of::<PyFloat>() {
        return Ok(None);
    }
    let is_number = found.is_instance_of::<PyInt>() || found.hasattr("__index__")?;
    if found.is_instance_of::<PyBool>() || !is_number {
        return Err(wrong_type(argument, expected, found));
    }
    Ok(found.extract().ok())
}

fn float(argument: &'static str, expected: &str, found: &Bound<'_, PyAny>) -> PyResult<f64> {
    match found.is_instance_of::<PyBool>() || found.is_instance_of::<PyString>() {
        true => Err(wrong_type(argument, expected, found)),
        false => found.extract().map_err(|_| wrong_type(argument, expected, found)),
    }
}

/// A value of a type that cannot be meant.
pub(crate) fn wrong_type(argument: &'static str, expected: &str, found: &Bound<'_, PyAny>) -> PyErr {
    let of = found.get_type().name().map(|name| name.to_string()).unwrap_or_default();
    let words = format!("`{argument}` is of the type {of}, expected {expected}");
    Refusal::new("WrongType", words).part("argument", argument).part("found", of).into()
}

fn not(argument: &'static str, found: &Bound<'_, PyAny>, what: &str, expected: &str) -> PyErr {
    let found = shown(found);
    Refusal::new("ArgumentError", format!("`{found}` is not {what}: expected {expected}"))
        .hint(format!("it was given as `{argument}`"))
        .part("argument", argument)
        .part("found", found)
        .into()
}

/// A value as it is written, cut off where it gets long.
fn shown(found: &Bound<'_, PyAny>) -> String {
    let text = found.str().map(|text| text.to_string());
    let text = text.unwrap_or_else(|_| "a number of thousands of digits".to_owned());
    match text.chars().count() > 80 {
        true => text.chars().take(80).chain("...".chars()).collect(),
        false => text,
    }
}
