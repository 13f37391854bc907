//! Profiles and plans that the user named.

use std::io::Write;
use std::path::{Path, PathBuf};

use rekindle::Planned;
use rekindle_plan::graph::{Graph, GraphPlan};
use rekindle_plan::{Plan, Profile};
use serde::Deserialize;

use crate::failure::{self, Failure};

/// What can be planned.
pub(crate) enum Model {
    Chain(Profile),
    Graph(Graph),
}

/// Whether a file says that it is of this format, in whichever version.
fn is(text: &str, format: &str) -> bool {
    #[derive(Deserialize)]
    struct Head {
        format: String,
    }
    let head = serde_json::from_str::<Head>(text).map(|head| head.format);
    head.is_ok_and(|found| found.strip_prefix(format).is_some_and(|rest| rest.starts_with('/')))
}

/// A profile together with its plan, as `--cache` writes them; `None` for any other file.
fn planned(text: &str, path: &Path) -> Option<Result<Planned, Failure>> {
    let refused = |error| {
        let error = anyhow::Error::new(error).context(format!("`{}`", path.display()));
        Failure::request(error, "have `--cache` write it anew")
    };
    is(text, "rekindle.planned").then(|| Planned::from_json(text).map_err(refused))
}

/// Reads a profile or a graph, whichever the file says it is.
pub(crate) fn model(path: &Path) -> Result<Model, Failure> {
    let text = failure::read_text(path)?;
    // A file that does not even say what it is, is refused as a profile.
    if is(&text, "rekindle.graph") {
        return Graph::from_json(&text).map(Model::Graph).map_err(|error| {
            let error = anyhow::Error::new(error).context(format!("`{}`", path.display()));
            Failure::request(error, "docs/formats.md describes graphs (rekindle.graph/1)")
        });
    }
    profile_in(&text, path).map(Model::Chain)
}

/// Reads a plan of a graph.
pub(crate) fn graph_plan(path: &Path) -> Result<GraphPlan, Failure> {
    GraphPlan::from_json(&failure::read_text(path)?).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("`{}`", path.display()));
        Failure::request(error, "docs/formats.md describes plans of graphs (rekindle.graph-plan/1)")
    })
}

/// What `rekindle profile --json` says beside a profile: how far the measured times lay apart. Whoever reads a profile passes it over.
pub(crate) const MEASURED: &str = "measured";

/// Reads a profile, by itself or together with its plan.
pub(crate) fn profile(path: &Path) -> Result<Profile, Failure> {
    profile_in(&failure::read_text(path)?, path)
}

/// The same once it was read: a pipe can be read only once.
fn profile_in(text: &str, path: &Path) -> Result<Profile, Failure> {
    if let Some(planned) = planned(text, path) {
        return planned.map(|planned| planned.profile().clone());
    }
    Profile::from_json(text).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("`{}`", path.display()));
        Failure::request(error, "docs/formats.md describes profiles (rekindle.profile/1)")
    })
}

/// Reads a plan, by itself or together with its profile.
pub(crate) fn plan(path: &Path) -> Result<Plan, Failure> {
    let text = failure::read_text(path)?;
    if let Some(planned) = planned(&text, path) {
        return planned.map(|planned| planned.plan().clone());
    }
    Plan::from_json(&text).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("`{}`", path.display()));
        Failure::request(error, "docs/formats.md describes plans (rekindle.plan/1)")
    })
}

/// Fails where a file could not be written, before the work for it is done.
pub(crate) fn check_writable(path: &Path) -> Result<(), Failure> {
    let part = part_of(&behind_links(path));
    let made = match path.is_dir() {
        true => Err(std::io::ErrorKind::IsADirectory.into()),
        false if is_no_file(path) => Ok(()),
        false => std::fs::File::create(&part).and_then(|_| std::fs::remove_file(&part)),
    };
    made.map_err(|error| cannot_write(error, path))
}

/// Refuses to write over what a model learns from, by whichever name or link.
pub(crate) fn check_apart(flag: &str, output: &Path, data: Option<&Path>) -> Result<(), Failure> {
    match data.is_some_and(|data| data.exists() && behind_links(data) == behind_links(output)) {
        true => Err(Failure::request(
            anyhow::anyhow!("{flag} and --data are both `{}`", output.display()),
            "name another file to write: nothing is written over what a model learns from",
        )),
        false => Ok(()),
    }
}

/// Writes a file as a whole: what was there before stays until the new text is complete. What is no file, such as a pipe or
/// `/dev/stdout`, is written to as it is.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    if is_no_file(path) {
        let written = std::fs::OpenOptions::new().write(true).open(path);
        let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
        return written.map_err(|error| cannot_write(error, path));
    }
    let behind = behind_links(path);
    let part = part_of(&behind);
    let written = std::fs::File::create(&part)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&part, &behind));
    written.map_err(|error| {
        // Nothing is lost when this fails too: the part is ours.
        let _ = std::fs::remove_file(&part);
        cannot_write(error, path)
    })
}

/// Whether there is something else than a file, which must not be replaced by one.
pub(crate) fn is_no_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// The file that a link leads to: that is written, and the link stays.
fn behind_links(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// What a file is called until it is complete.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

fn cannot_write(error: std::io::Error, path: &Path) -> Failure {
    let error = anyhow::Error::new(error).context(format!("cannot write `{}`", path.display()));
    Failure::failed(error, "check the folder, its permissions and the room on the disk")
}
