//! The page around the figures: numbers, tables, words.

mod tables;

use rekindle_plan::{Bytes, Nanos, Status};

use crate::figures::{Drawing, Look, frontier, memory, timeline, totals};
use crate::markup::Markup;
use crate::step::Step;
use crate::{Report, theme};

const SCRIPT: &str = include_str!("page/script.js");

pub(crate) fn write(report: &Report<'_>, step: &Step<'_>) -> String {
    let mut page = Markup::default();
    page.own("<!DOCTYPE html>\n").open("html", &[("lang", &"en")]).line();
    head(&mut page, step);
    page.open("body", &[]).line();
    header(&mut page, report, step);
    page.open("main", &[]).line();
    memory_section(&mut page, report, step);
    timeline_section(&mut page, step);
    frontier_section(&mut page, report, step);
    section(&mut page, "kept", "What is kept");
    tables::kept(&mut page, step);
    page.close("section").line();
    totals_section(&mut page, report, step);
    page.close("main").line();
    footer(&mut page, step);
    page.element("div", &[("id", &"tip"), ("role", &"status"), ("hidden", &"hidden")], "").line();
    page.open("script", &[]).line().own(SCRIPT).close("script").line();
    page.close("body").close("html").line();
    page.finish()
}

fn head(page: &mut Markup, step: &Step<'_>) {
    // The page says itself that it may load nothing.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
    page.open("head", &[])
        .empty("meta", &[("charset", &"utf-8")])
        .empty("meta", &[("http-equiv", &"Content-Security-Policy"), ("content", &policy)])
        .empty("meta", &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")])
        .empty("meta", &[("name", &"color-scheme"), ("content", &"light dark")])
        .empty("link", &[("rel", &"icon"), ("href", &"data:,")])
        .element("title", &[], format!("{}: rekindle report", step.profile.model()))
        .open("style", &[])
        .own(&theme::page_style())
        .close("style")
        .close("head")
        .line();
}

fn header(page: &mut Markup, report: &Report<'_>, step: &Step<'_>) {
    page.open("header", &[])
        .element("p", &[("class", &"kicker")], "rekindle report")
        .element("h1", &[], step.profile.model())
        .open("p", &[("class", &"under")])
        .text(format!("{} on {}, planned by ", counted(stages(step), "stage"), step.profile.device()))
        .element("code", &[], &step.plan.solver)
        .text(" ")
        .element("span", &[("class", &"status")], status(&step.plan.status))
        .close("p");
    if let Some(recipe) = &report.recipe {
        page.element("p", &[("class", &"under")], recipe);
    }
    page.element("p", &[("class", &"lede")], lede(step));
    cards(page, report, step);
    tables::measured(page, report, step);
    page.close("header").line();
}

fn stages(step: &Step<'_>) -> u64 {
    step.profile.stages().len() as u64
}

fn status(status: &Status) -> String {
    match status {
        Status::Optimal => "optimal in its class".to_owned(),
        Status::Feasible(gap) => format!("within {:.2}% of the fastest in its class", gap.get() * 100.0),
        Status::Rule(rule) => format!("by the rule {rule}"),
        other => other.to_string(),
    }
}

/// The report in two sentences.
fn lede(step: &Step<'_>) -> String {
    let simulation = &step.simulation;
    let peak = match step.plan.budget_bytes {
        Some(budget) => {
            format!("At its worst moment this plan takes {} of a budget of {budget}.", simulation.peak_bytes)
        }
        None => format!("At its worst moment this plan takes {}.", simulation.peak_bytes),
    };
    let time = match (step.timed, again(step)) {
        (false, 0) => "It runs nothing twice; the profile has no times.".to_owned(),
        (false, again) => format!("It runs {} again; the profile has no times.", counted(again, "forward")),
        (true, 0) => format!("It runs nothing twice: a step takes {}.", time(simulation.step_ns)),
        (true, again) => format!(
            "It runs {} again, so a step takes {}: {} more than with every stage once.",
            counted(again, "forward"),
            time(simulation.step_ns),
            percent(simulation.step_ns.ratio(step.profile.lower_bound()) - 1.0),
        ),
    };
    format!("{peak} {time}")
}

/// How many forwards run a stage that ran before.
fn again(step: &Step<'_>) -> u64 {
    step.simulation.forwards.saturating_sub(stages(step))
}

fn cards(page: &mut Markup, report: &Report<'_>, step: &Step<'_>) {
    let simulation = &step.simulation;
    let measured = report.measured.as_ref();
    page.open("dl", &[("class", &"cards")]).line();
    let small = measured.map(|measured| format!("measured {}", measured.peak_bytes));
    card(page, "Peak", &simulation.peak_bytes.to_string(), &small.unwrap_or_else(|| "predicted".to_owned()));
    let small = measured.map(|measured| format!("measured {}", time(measured.step_ns)));
    let big = if step.timed { time(simulation.step_ns) } else { "no times".to_owned() };
    card(page, "Step", &big, &small.unwrap_or_else(|| "predicted".to_owned()));
    match step.plan.budget_bytes {
        None => card(page, "Budget", "none", "the plan was made for no budget"),
        Some(budget) => {
            let used = part(simulation.peak_bytes, budget);
            let width = format!("width:{:.1}%", (used * 100.0).clamp(0.0, 100.0));
            page.open("div", &[("class", &"card")])
                .element("dt", &[], "Budget used")
                .element("dd", &[("class", &"big")], percent(used))
                .open("dd", &[("class", &"small")])
                .open("span", &[("class", &"gauge")])
                .element("b", &[("style", &width)], "")
                .close("span")
                .text(format!("{} free", budget.saturating_sub(simulation.peak_bytes)))
                .close("dd")
                .close("div")
                .line();
        }
    }
    let share = match step.timed {
        true => format!("{} of the step", percent(fraction(simulation.recompute_ns, simulation.step_ns))),
        false => format!("for {}", counted(stages(step), "stage")),
    };
    card(page, "Forwards run again", &grouped(again(step)), &share);
    page.close("dl").line();
}

fn card(page: &mut Markup, name: &str, big: &str, small: &str) {
    page.open("div", &[("class", &"card")])
        .element("dt", &[], name)
        .element("dd", &[("class", &"big")], big)
        .element("dd", &[("class", &"small")], small)
        .close("div")
        .line();
}

fn section(page: &mut Markup, id: &'static str, name: &str) {
    page.open("section", &[("id", &id)]).element("h2", &[], name).line();
}

/// A figure in both looks, with its words.
fn figure(page: &mut Markup, draw: impl Fn(Look) -> Drawing, words: &str) {
    let (wide, narrow) = (draw(Look::Wide), draw(Look::Narrow));
    page.open("figure", &[]).line().own(&wide.svg).line().own(&narrow.svg).line();
    page.open("figcaption", &[]).text(words);
    if wide.thinned || narrow.thinned {
        page.text(" What is too thin to be seen is drawn together; the numbers are exact.");
    }
    page.close("figcaption").close("figure").line();
}

fn memory_section(page: &mut Markup, report: &Report<'_>, step: &Step<'_>) {
    section(page, "memory", "Memory over the step");
    let mut words = match step.timed {
        true => "Bytes alive on the device while each action runs.".to_owned(),
        false => {
            "Bytes alive on the device at each action; the profile has no times, so all are drawn alike."
                .to_owned()
        }
    };
    words.push_str(" The dotted line is the turn from the forward half to the backward half.");
    if let Some(budget) =
        step.plan.budget_bytes.filter(|budget| budget.get() / 3 > step.simulation.peak_bytes.get())
    {
        words.push_str(&format!(" The budget of {budget} lies far above."));
    }
    figure(page, |look| memory::draw(step, report.measured.as_ref(), look), &words);
    tables::peak(page, step);
    page.close("section").line();
}

fn timeline_section(page: &mut Markup, step: &Step<'_>) {
    section(page, "plan", "The plan");
    let rows = match timeline::stages_in_a_row(step) {
        1 => "each stage".to_owned(),
        shared => format!("every {}", counted(shared as u64, "stage")),
    };
    let mut words = format!(
        "Time runs to the right, one row for {rows}. Point at a mark to see what it is; with the keyboard, choose the \
         figure and use the arrows."
    );
    if step.simulation.wait_ns > Nanos::ZERO {
        let waits = time(step.simulation.wait_ns);
        words.push_str(&format!(" The step waits {waits} for transfers."));
    }
    figure(page, |look| timeline::draw(step, look), &words);
    page.close("section").line();
}

fn frontier_section(page: &mut Markup, report: &Report<'_>, step: &Step<'_>) {
    section(page, "frontier", "The frontier");
    let measured = report.measured.as_ref();
    match frontier::draw(step.profile, Some(step), &report.frontier, measured, Look::Wide) {
        None => {
            page.element("p", &[("class", &"note")], "The frontier was not asked for.");
        }
        Some(_) => {
            let words = "The cheapest step for every budget, and where this plan stands. A longer step buys a smaller peak.";
            let draw = |look| {
                let drawing = frontier::draw(step.profile, Some(step), &report.frontier, measured, look);
                drawing.unwrap_or(Drawing { svg: String::new(), thinned: false })
            };
            figure(page, draw, words);
            tables::frontier(page, report, step);
        }
    }
    page.close("section").line();
}

fn totals_section(page: &mut Markup, report: &Report<'_>, step: &Step<'_>) {
    section(page, "totals", "All memory at the predicted peak");
    match &report.totals {
        None => {
            let words = format!(
                "Weights, gradients, optimizer state and workspace were not given. The plan’s activations take {} at the peak.",
                step.simulation.peak_bytes
            );
            page.element("p", &[("class", &"note")], words);
        }
        Some(given) => {
            figure(
                page,
                |look| totals::draw(given, look),
                "What training takes at the moment that is predicted to be the worst, by what it is for.",
            );
            tables::totals(page, given);
        }
    }
    page.close("section").line();
}

fn footer(page: &mut Markup, step: &Step<'_>) {
    let words = format!(
        "Every predicted number is the simulator’s, for the {} of this plan and the profile with the fingerprint ",
        counted(step.plan.actions.len() as u64, "action")
    );
    page.open("footer", &[])
        .open("p", &[])
        .text(words)
        .element("code", &[], step.profile.fingerprint())
        .text(". This page loads nothing.")
        .close("p")
        .close("footer")
        .line();
}

/// Some of a kind, such as `1 stage` or `26 stages`.
fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{} {what}s", grouped(count)) }
}

/// A number in groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

fn time(nanos: Nanos) -> String {
    nanos.to_string().replace(" us", " µs")
}

fn percent(fraction: f64) -> String {
    format!("{:.1}%", fraction * 100.0)
}

/// With a sign, as typesetters write it.
fn signed_percent(fraction: f64) -> String {
    let text = format!("{:+.1}%", fraction * 100.0);
    match text.as_str() {
        "+0.0%" | "-0.0%" => "0.0%".to_owned(),
        text => text.replace('-', "−"),
    }
}

fn part(bytes: Bytes, of: Bytes) -> f64 {
    if of == Bytes::ZERO { 1.0 } else { bytes.get() as f64 / of.get() as f64 }
}

fn fraction(nanos: Nanos, of: Nanos) -> f64 {
    if of == Nanos::ZERO { 0.0 } else { nanos.get() as f64 / of.get() as f64 }
}
