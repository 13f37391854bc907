//! A trace as a file that timeline viewers open.

use rekindle_plan::{Action, Nanos};
use serde_json::{Value, json};

use super::{Event, Moved, Trace};
use crate::Way;

impl Trace {
    /// The trace as JSON in the Trace Event Format, which Perfetto and Chromium's `about:tracing` open: a line for the
    /// actions, two for each place that something was moved to and from, and a curve of the bytes alive. `names` are the stages'.
    ///
    /// ```
    /// use rekindle_plan::{Bytes, Profile, Rule, Schedule, StageProfile};
    /// use rekindle_run::{Executor, Stores, counted::CountedEngine};
    ///
    /// let stage = StageProfile { name: "only".into(), ..StageProfile::default() };
    /// let profile = Profile::new("one", "none", Bytes::new(10), vec![stage])?;
    /// let (schedule, _) = Schedule::judge(&profile, &Rule::StoreAll.actions(1)?)?;
    /// let mut engine = CountedEngine::new(profile);
    /// let mut executor = Executor::new(schedule, Stores::new()).traced();
    /// let input = engine.input();
    /// executor.forward(&mut engine, input)?;
    /// let trace = executor.trace().ok_or("not traced")?;
    /// assert!(trace.timeline(["only"]).contains("\"name\":\"only\""));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn timeline<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> String {
        let names: Vec<&str> = names.into_iter().collect();
        let mut lines: Vec<String> = self.transfers.iter().map(line_of).collect();
        lines.sort_unstable();
        lines.dedup();
        lines.insert(0, "stages".to_owned());
        let mut events: Vec<Value> =
            lines.iter().enumerate().map(|(number, name)| line(number, name)).collect();
        let mut has_run = vec![false; names.len()];
        for event in &self.events {
            events.push(action(event, &names, &mut has_run));
            events.extend(alive(event));
        }
        events.extend(self.transfers.iter().map(|moved| {
            let name = line_of(moved);
            transfer(moved, lines.iter().position(|line| *line == name).unwrap_or(0))
        }));
        json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
    }
}

/// Which line a transfer is on: the two ways may go on at once.
fn line_of(moved: &Moved) -> String {
    match moved.way {
        Way::Out => format!("to {}", moved.place),
        Way::Back => format!("from {}", moved.place),
    }
}

/// What a line is called.
fn line(number: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": { "name": name } })
}

fn action(event: &Event, names: &[&str], has_run: &mut [bool]) -> Value {
    let stage = event.action.stage().map(|stage| stage.number() as usize - 1);
    let name = stage.and_then(|stage| names.get(stage).copied());
    let is_again = stage
        .and_then(|stage| has_run.get_mut(stage))
        .is_some_and(|has_run| std::mem::replace(has_run, true));
    let kind = match &event.action {
        Action::Backward { .. } => "backward",
        Action::Forward { .. } | Action::Tape { .. } if is_again => "recompute",
        Action::Forward { .. } | Action::Tape { .. } => "forward",
        _ => "place",
    };
    let text = event.action.to_string();
    json!({
        "ph": "X",
        "name": name.unwrap_or(&text),
        "cat": kind,
        "pid": 1,
        "tid": 0,
        "ts": microseconds(event.start),
        "dur": microseconds(event.end.saturating_sub(event.start)),
        "args": {
            "action": text,
            "kind": kind,
            "peak_bytes": event.peak_bytes,
            "waited_us": microseconds(event.waited),
            "faults": event.faults.iter().map(|fault| fault.error.to_string()).collect::<Vec<_>>(),
        },
    })
}

/// A point of the curve, where the engine can tell.
fn alive(event: &Event) -> Option<Value> {
    let bytes = event.live_bytes?;
    Some(json!({
        "ph": "C", "name": "bytes alive", "pid": 1, "ts": microseconds(event.end), "args": { "bytes": bytes },
    }))
}

fn transfer(moved: &Moved, line: usize) -> Value {
    json!({
        "ph": "X",
        "name": moved.boundary.to_string(),
        "cat": "transfer",
        "pid": 1,
        "tid": line,
        "ts": microseconds(moved.start),
        "dur": microseconds(moved.end.saturating_sub(moved.start)),
        "args": { "bytes": moved.bytes },
    })
}

/// The unit of the format.
fn microseconds(time: Nanos) -> f64 {
    time.get() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use rekindle_plan::{Bytes, Name, Policy, Profile, StageProfile, Tier};

    use super::*;
    use crate::counted::CountedEngine;
    use crate::{Executor, HostStore, Store, Stores};

    const NAMES: [&str; 3] = ["stem", "block", "head"];

    fn timeline(policy: &str) -> Value {
        let stage = |name: &str| StageProfile {
            name: name.to_owned(),
            output_bytes: Bytes::new(64),
            tape_bytes: Bytes::new(256),
            ..StageProfile::default()
        };
        let host: Name = "host".parse().unwrap();
        let tier = Tier {
            name: host.clone(),
            capacity_bytes: Bytes::mebibytes(1),
            write_bytes_per_second: 1 << 30,
            read_bytes_per_second: 1 << 30,
        };
        let profile = Profile::new("three", "none", Bytes::new(64), NAMES.map(stage).to_vec()).unwrap();
        let profile = profile.with_places(vec![tier], Vec::new()).unwrap();
        let plan = policy.parse::<Policy>().unwrap().plan(&profile).unwrap();
        let (schedule, _) = plan.judge(&profile).unwrap();
        let store: Box<dyn Store> = Box::new(HostStore::new(Bytes::mebibytes(1)));
        let mut engine = CountedEngine::new(profile);
        let mut executor = Executor::new(schedule, Stores::from([(host, store)])).traced();
        let input = engine.input();
        executor.forward(&mut engine, input).unwrap();
        let gradient = engine.output_gradient();
        executor.backward(&mut engine, gradient).unwrap();
        serde_json::from_str(&executor.trace().unwrap().timeline(NAMES)).unwrap()
    }

    fn events(timeline: &Value) -> impl Iterator<Item = &Value> {
        timeline["traceEvents"].as_array().unwrap().iter()
    }

    fn names<'a>(timeline: &'a Value, kind: &str) -> Vec<&'a str> {
        let of = events(timeline).filter(|event| event["cat"] == kind);
        of.map(|event| event["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn what_runs_again_is_told_from_what_runs_first() {
        let timeline = timeline("recompute-all, keep *");
        let [stem, block, head] = NAMES;
        assert_eq!(names(&timeline, "forward"), [stem, block, head]);
        assert_eq!(names(&timeline, "recompute"), [block, stem]);
        assert_eq!(names(&timeline, "backward"), [head, block, stem]);
        assert!(names(&timeline, "transfer").is_empty());
        let ends = events(&timeline).filter(|event| event["tid"] == 0 && event["ph"] == "X");
        let ends: Vec<[f64; 2]> =
            ends.map(|event| [&event["ts"], &event["dur"]].map(|time| time.as_f64().unwrap())).collect();
        // One after the other: what overlaps on a line, viewers draw wrongly.
        assert!(ends.windows(2).all(|pair| pair[0][0] + pair[0][1] <= pair[1][0] + 1e-3), "{ends:?}");
        assert_eq!(events(&timeline).filter(|event| event["ph"] == "C").count(), ends.len());
    }

    #[test]
    fn transfers_have_lines_of_their_own() {
        let timeline = timeline("recompute-all, offload stem.output host, keep block.output");
        // Back from host memory it goes without a copy.
        assert_eq!(names(&timeline, "transfer"), ["x1"]);
        let lines = events(&timeline).filter(|event| event["ph"] == "M");
        let lines: Vec<_> = lines.map(|line| line["args"]["name"].as_str().unwrap()).collect();
        assert_eq!(lines, ["stages", "to host"]);
    }
}
