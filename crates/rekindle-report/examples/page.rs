//! A page from a profile and a budget: `cargo run -p rekindle-report --example page -- PROFILE.json 64MiB page.html`.
//!
//! The figures lie beside it, as `page.memory.svg` and so on. Nothing is run, so nothing is measured.

use std::error::Error;
use std::fs;
use std::path::Path;

use rekindle_plan::solvers::optimal;
use rekindle_plan::{Bytes, Profile, Request};
use rekindle_report::{Figure, Report};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [profile, budget, page] = arguments.as_slice() else {
        return Err(
            "expected a profile, a budget and where the page goes, such as `gpt.json 64MiB page.html`".into(),
        );
    };
    let profile = Profile::from_json(&fs::read_to_string(profile)?)?;
    let budget: Bytes = budget.parse()?;
    let frontier = optimal::frontier(&profile, &Request::default())?;
    let plan = optimal::solve(&profile, &Request::new(budget))?;

    let mut report = Report::new(&profile, &plan);
    report.frontier = frontier.points().iter().map(Into::into).collect();
    fs::write(page, report.html()?)?;
    for figure in [Figure::Memory, Figure::Timeline, Figure::Frontier] {
        fs::write(Path::new(page).with_extension(format!("{figure}.svg")), report.svg(figure)?)?;
    }
    Ok(())
}
