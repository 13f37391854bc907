//! Profiles and plans that the user named.

use std::io::Write;
use std::path::Path;

use rekindle_plan::graph::{Graph, GraphPlan};
use rekindle_plan::{Plan, Profile};
use serde::Deserialize;

use crate::failure::{self, Failure};

/// What can be planned.
pub(crate) enum Model {
    Chain(Profile),
    Graph(Graph),
}

/// Reads a profile or a graph, whichever the file says it is.
pub(crate) fn model(path: &Path) -> Result<Model, Failure> {
    #[derive(Deserialize)]
    struct Head {
        format: String,
    }
    let text = failure::read_text(path)?;
    // A file that does not even say what it is, is refused as a profile.
    let head = serde_json::from_str::<Head>(&text).map(|head| head.format);
    if head.is_ok_and(|format| format.starts_with("rekindle.graph/")) {
        return Graph::from_json(&text).map(Model::Graph).map_err(|error| {
            let error = anyhow::Error::new(error).context(format!("`{}`", path.display()));
            Failure::request(error, "docs/formats.md describes graphs (rekindle.graph/1)")
        });
    }
    profile(path).map(Model::Chain)
}

/// Reads a plan of a graph.
pub(crate) fn graph_plan(path: &Path) -> Result<GraphPlan, Failure> {
    GraphPlan::from_json(&failure::read_text(path)?).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("`{}`", path.display()));
        Failure::request(error, "docs/formats.md describes plans of graphs (rekindle.graph-plan/1)")
    })
}

/// Reads a profile.
pub(crate) fn profile(path: &Path) -> Result<Profile, Failure> {
    Profile::from_json(&failure::read_text(path)?).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("`{}`", path.display()));
        Failure::request(error, "docs/formats.md describes profiles (rekindle.profile/1)")
    })
}

/// Reads a plan.
pub(crate) fn plan(path: &Path) -> Result<Plan, Failure> {
    Plan::from_json(&failure::read_text(path)?).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("`{}`", path.display()));
        Failure::request(error, "docs/formats.md describes plans (rekindle.plan/1)")
    })
}

/// Writes a file as a whole: what was there before stays until the new text is complete.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = std::fs::File::create(&part)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&part, path));
    written.map_err(|error| {
        // Nothing is lost when this fails too: the part is ours.
        let _ = std::fs::remove_file(&part);
        let error = anyhow::Error::new(error).context(format!("cannot write `{}`", path.display()));
        Failure::failed(error, "check the folder, its permissions and the room on the disk")
    })
}
