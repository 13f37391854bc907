//! What a page says, and that it says it whatever it is given.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod example;

use std::time::{Duration, Instant};

use rekindle_plan::{Bytes, Nanos, Plan, PlanError, Profile, Rule, StageProfile};
use rekindle_report::{Figure, Measured, MeasuredEvent, Point, Report, ReportError, Totals};

/// A page, or a figure, parsed as the XML that it is too.
fn parsed(text: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    roxmltree::Document::parse_with_options(text, options).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The words of a page, without its style and script.
fn words(html: &str) -> String {
    let document = parsed(html);
    let shown = |node: &roxmltree::Node<'_, '_>| {
        !node.ancestors().any(|outer| matches!(outer.tag_name().name(), "style" | "script" | "svg"))
    };
    let texts = document.descendants().filter(|node| node.is_text() && shown(node));
    texts.filter_map(|node| node.text()).collect::<Vec<_>>().join(" ")
}

fn marks(html: &str, class: &str) -> usize {
    let document = parsed(html);
    let of = |node: &roxmltree::Node<'_, '_>| {
        node.attribute("class").is_some_and(|found| found.split(' ').any(|word| word == class))
    };
    document.descendants().filter(of).count()
}

fn full<'a>(profile: &'a Profile, plan: &'a Plan) -> Report<'a> {
    let mut report = Report::new(profile, plan);
    report.frontier = example::frontier(profile);
    report.measured = Some(example::invented(profile, plan));
    report.totals = Some(example::totals());
    report
}

#[test]
fn a_small_page_is_as_it_was() {
    let profile = example::equal(2);
    let plan = Plan::by_rule(&profile, Rule::Full, Some(Bytes::mebibytes(20))).unwrap();
    let mut report = Report::new(&profile, &plan);
    report.frontier = vec![
        Point { budget_bytes: Bytes::mebibytes(9), step_ns: Nanos::new(8_000_000) },
        Point { budget_bytes: Bytes::mebibytes(17), step_ns: Nanos::new(6_000_000) },
    ];
    report.totals = Some(example::totals());
    let event = |action, start, end, live, peak| MeasuredEvent {
        action,
        start: Nanos::new(start),
        end: Nanos::new(end),
        live_bytes: Some(Bytes::mebibytes(live)),
        peak_bytes: Some(Bytes::mebibytes(peak)),
    };
    report.measured = Some(Measured {
        peak_bytes: Bytes::mebibytes(17),
        step_ns: Nanos::new(9_000_000),
        events: vec![event(1, 0, 1_000_000, 1, 1), event(2, 1_000_000, 9_000_000, 17, 17)],
        set_by: Some("tape of block.1".to_owned()),
        transfers: None,
    });
    let html = report.html().unwrap();
    parsed(&html);
    // The style and the script have tests of their own, in a browser.
    let cut = |text: &str, from: &str, to: &str| {
        let (start, end) = (text.find(from).unwrap() + from.len(), text.find(to).unwrap());
        format!("{}…{}", &text[..start], &text[end..])
    };
    insta::assert_snapshot!(cut(&cut(&html, "<style>", "</style>"), "<script>", "</script>"));
    insta::assert_snapshot!("memory", report.svg(Figure::Memory).unwrap());
}

#[test]
fn everything_asked_for_is_on_the_page() {
    let profile = example::gpt();
    let plan = example::quarter(&profile);
    let html = full(&profile, &plan).html().unwrap();
    let words = words(&html);
    for part in [
        "Memory over the step",
        "The plan",
        "The frontier",
        "What is kept",
        "All memory at the predicted peak",
        "optimal in its class",
        "52.0 MiB of a budget of 52.1 MiB",
        "Predicted and measured",
        "+3.9%",
        "The measured peak was set by tape of block.20",
        "In the measured step, 2 transfers of 1.0 MiB took 1.00 ms",
        "tapes of block.0 to block.3, block.23 to head",
        "20 forwards run again",
        "Budget used",
        "weights",
        "gradients",
        "optimizer state",
        "activations",
        "workspace",
        "x12 to x22, every 2nd",
    ] {
        assert!(words.contains(part), "no {part:?} in {words}");
    }
    // Both looks: 26 forwards, 20 again, 26 backwards.
    assert_eq!(
        [marks(&html, "forward"), marks(&html, "again"), marks(&html, "backward")],
        [2 * 27, 2 * 21, 2 * 27]
    );
}

#[test]
fn a_measured_peak_is_set_by_a_stage_with_its_name() {
    let profile = example::gpt();
    let plan = example::quarter(&profile);
    let mut report = full(&profile, &plan);
    let measured = report.measured.as_mut().unwrap();
    measured.set_by = None;
    let highest = measured.events.iter().rposition(|event| event.action == plan.actions.len() - 3).unwrap();
    measured.events[highest].peak_bytes = Some(Bytes::mebibytes(99));
    let words = words(&report.html().unwrap());
    let (_, told) = words.split_once("The measured peak was set by the ").unwrap();
    let told = told.split_once('.').unwrap().0.to_owned() + told.split_once('.').unwrap().1;
    assert!(told.starts_with("forward of") || told.starts_with("backward of"), "{told}");
    assert!(told.contains("; the largest it keeps then is"), "{told}");
    for event in &mut report.measured.as_mut().unwrap().events {
        event.peak_bytes = None;
    }
    assert!(!report.html().unwrap().contains("The measured peak was set by"), "nobody saw a peak");
}

#[test]
fn every_stage_is_in_the_table_of_what_is_kept() {
    // No two of them are alike, so each has a row.
    let stages = (0..100).map(|index| StageProfile {
        tape_bytes: Bytes::mebibytes(8 + index),
        ..example::stage(format!("block.{index}"), 1)
    });
    let profile = Profile::new("hundred", "none", Bytes::new(1 << 18), stages.collect()).unwrap();
    let plan = Plan::by_rule(&profile, Rule::StoreAll, None).unwrap();
    let html = Report::new(&profile, &plan).html().unwrap();
    let document = parsed(&html);
    let rows: Vec<_> = document.descendants().filter(|node| node.attribute("scope") == Some("row")).collect();
    let folded = |node: &roxmltree::Node<'_, '_>| node.ancestors().any(|outer| outer.has_tag_name("details"));
    for index in 0..100 {
        let name = format!("block.{index}");
        let found: Vec<_> = rows.iter().filter(|row| row.text() == Some(&name)).collect();
        assert!(!found.is_empty(), "no {name}");
        assert_eq!(found.iter().all(|row| folded(row)), index >= 40, "{name}");
    }
    assert!(words(&html).contains("And 60 more rows"));
}

/// Once they were printed over each other.
#[test]
fn the_names_of_two_near_spots_do_not_touch() {
    let profile = example::gpt();
    let plan = example::quarter(&profile);
    let mut report = full(&profile, &plan);
    let predicted = plan.predicted;
    for (bytes, time) in [(1.0, 1.0), (1.01, 1.02), (0.99, 1.02), (1.01, 0.98), (0.99, 0.98), (1.0, 1.1)] {
        let measured = report.measured.as_mut().unwrap();
        measured.peak_bytes = Bytes::new((predicted.peak_bytes.get() as f64 * bytes) as u64);
        measured.step_ns = Nanos::new((predicted.step_ns.get() as f64 * time) as u64);
        let svg = report.svg(Figure::Frontier).unwrap();
        let document = parsed(&svg);
        let place = |words: &str| {
            let label = document.descendants().find(|node| node.is_element() && node.text() == Some(words));
            let label = label.unwrap();
            ["x", "y"].map(|name| label.attribute(name).unwrap().parse::<f64>().unwrap())
        };
        let ([x, y], [other_x, other_y]) = (place("this plan"), place("measured"));
        let apart = (x - other_x).abs() > 70.0 || (y - other_y).abs() > 13.0;
        assert!(apart, "{bytes} {time}: {x} {y} and {other_x} {other_y}");
    }
}

#[test]
fn nothing_on_the_page_is_loaded_from_elsewhere() {
    let profile = example::gpt();
    let plan = example::quarter(&profile);
    let report = full(&profile, &plan);
    let html = report.html().unwrap();
    for outside in ["http:", "https:", "//", "@import", "url("] {
        let found = html.match_indices(outside).map(|(at, _)| &html[at..(at + 30).min(html.len())]);
        let found: Vec<&str> =
            found.filter(|text| !text.starts_with("url(#") && !text.starts_with("// ")).collect();
        assert!(found.is_empty(), "{outside}: {found:?}");
    }
    let svg = report.svg(Figure::Timeline).unwrap();
    assert_eq!(svg.matches("http").count(), 1, "the name of SVG itself is not loaded");
}

#[test]
fn a_name_stays_a_name() {
    let evil = "</title><script>alert('1')</script>&amp;\"\u{0}\u{202e}";
    let stages = vec![example::stage(evil, 1), example::stage(format!("{evil}2"), 2)];
    let profile = Profile::new(evil, evil, Bytes::new(1 << 18), stages).unwrap();
    let mut plan = Plan::by_rule(&profile, Rule::Full, None).unwrap();
    plan.solver = evil.to_owned();
    let mut report = full(&profile, &plan);
    report.measured.as_mut().unwrap().set_by = Some(evil.to_owned());
    let html = report.html().unwrap();
    assert_eq!(html.matches("<script").count(), 1);
    assert_eq!(html.matches("</title>").count(), html.matches("<title>").count());
    let shown = evil.replace(['\u{0}', '\u{202e}'], "\u{fffd}");
    assert!(words(&html).contains(&shown), "the name is still to be read");
    for figure in Figure::ALL {
        let svg = report.svg(figure).unwrap();
        parsed(&svg);
        assert!(!svg.contains("<script"));
    }
}

#[test]
fn a_plan_for_another_profile_is_refused() {
    let (profile, other) = (example::equal(4), example::equal(5));
    let plan = Plan::by_rule(&other, Rule::SquareRoot, None).unwrap();
    let report = Report::new(&profile, &plan);
    assert!(matches!(report.html(), Err(ReportError::Plan(PlanError::OtherModel { .. }))));
    assert!(matches!(report.svg(Figure::Memory), Err(ReportError::Plan(PlanError::OtherModel { .. }))));
    let mut plan = Plan::by_rule(&profile, Rule::SquareRoot, None).unwrap();
    plan.actions.pop();
    assert!(matches!(Report::new(&profile, &plan).html(), Err(ReportError::Plan(PlanError::Illegal(_)))));
    let mut plan = Plan::by_rule(&profile, Rule::SquareRoot, None).unwrap();
    plan.budget_bytes = Some(Bytes::new(1));
    assert!(matches!(
        Report::new(&profile, &plan).html(),
        Err(ReportError::Plan(PlanError::OverBudget { .. }))
    ));
}

#[test]
fn a_trace_of_another_plan_is_refused() {
    let profile = example::equal(3);
    let plan = Plan::by_rule(&profile, Rule::StoreAll, None).unwrap();
    let refused = |event: MeasuredEvent| {
        let mut report = Report::new(&profile, &plan);
        report.measured =
            Some(Measured { events: vec![MeasuredEvent::default(), event], ..Measured::default() });
        report.html().unwrap_err()
    };
    let error = refused(MeasuredEvent { action: 6, ..MeasuredEvent::default() });
    assert_eq!(error, ReportError::NoAction { event: 1, action: 6, actions: 6 });
    assert_eq!(
        error.to_string(),
        "event 1 ran action 6, but the plan has 6 actions; give the trace of this plan"
    );
    let error =
        refused(MeasuredEvent { start: Nanos::new(2), end: Nanos::new(1), ..MeasuredEvent::default() });
    assert_eq!(error, ReportError::Backwards { event: 1, start: 2, end: 1 });
}

#[test]
fn without_frontier_measurements_and_totals_the_page_says_so() {
    let profile = example::equal(4);
    let plan = Plan::by_rule(&profile, Rule::SquareRoot, None).unwrap();
    let report = Report::new(&profile, &plan);
    let html = report.html().unwrap();
    let words = words(&html);
    assert!(words.contains("The frontier was not asked for."));
    assert!(words.contains("optimizer state and workspace were not given"));
    assert!(words.contains("the plan was made for no budget") && !words.contains("measured"), "{words}");
    for (figure, needed) in [(Figure::Frontier, "the points of the frontier"), (Figure::Totals, "the totals")]
    {
        assert_eq!(report.svg(figure), Err(ReportError::NothingToDraw { figure, needed }));
    }
}

#[test]
fn one_stage_is_a_page() {
    let profile = example::equal(1);
    let plan = Plan::by_rule(&profile, Rule::StoreAll, None).unwrap();
    let html = full(&profile, &plan).html().unwrap();
    let words = words(&html);
    assert!(words.contains("1 stage on none") && words.contains("It runs nothing twice"), "{words}");
    assert!(words.contains("No boundary is kept beyond its first reading."));
}

#[test]
fn a_profile_without_times_or_sizes_is_a_page() {
    let names = (0..5).map(|index| format!("stage.{index}"));
    let profile = Profile::unmeasured(names, &[]).unwrap();
    let plan = Plan::by_rule(&profile, Rule::Full, Some(Bytes::ZERO)).unwrap();
    let mut report = Report::new(&profile, &plan);
    report.frontier = vec![Point { budget_bytes: Bytes::ZERO, step_ns: Nanos::ZERO }];
    report.measured = Some(Measured {
        events: vec![MeasuredEvent { action: 1, ..MeasuredEvent::default() }],
        ..Measured::default()
    });
    report.totals = Some(Totals::default());
    let html = report.html().unwrap();
    assert!(words(&html).contains("the profile has no times"));
    no_bad_number(&html);
    for figure in Figure::ALL {
        let svg = report.svg(figure).unwrap();
        parsed(&svg);
        no_bad_number(&svg);
    }
}

#[test]
fn sizes_and_times_near_the_limit_are_a_page() {
    let stage = |index: usize| StageProfile {
        name: format!("huge.{index}"),
        output_bytes: Bytes::new(1 << 60),
        tape_bytes: Bytes::new(1 << 61),
        forward_ns: Nanos::new(1 << 60),
        backward_ns: Nanos::new(1 << 61),
        ..StageProfile::default()
    };
    let profile = Profile::new("huge", "none", Bytes::new(1), (0..3).map(stage).collect()).unwrap();
    let plan = Plan::by_rule(&profile, Rule::EVERY_ONE, Some(Bytes::MAX)).unwrap();
    let mut report = Report::new(&profile, &plan);
    report.frontier = vec![
        Point { budget_bytes: Bytes::MAX, step_ns: Nanos::MAX },
        Point { budget_bytes: Bytes::ZERO, step_ns: Nanos::ZERO },
    ];
    let most = Bytes::MAX;
    report.totals = Some(Totals {
        weights: most,
        gradients: most,
        optimizer_state: most,
        activations: most,
        workspace: most,
    });
    let event = MeasuredEvent { end: Nanos::MAX, live_bytes: Some(most), ..MeasuredEvent::default() };
    report.measured = Some(Measured {
        peak_bytes: most,
        step_ns: Nanos::MAX,
        events: vec![event; 3],
        set_by: None,
        transfers: None,
    });
    let html = report.html().unwrap();
    parsed(&html);
    no_bad_number(&html);
}

/// Coordinates are numbers that a browser can read.
fn no_bad_number(text: &str) {
    for bad in ["NaN", "inf\"", "inf ", "-inf", "infinity"] {
        assert!(!text.contains(bad), "{bad}");
    }
}

#[test]
fn events_may_lack_bytes_and_come_in_any_order() {
    let profile = example::equal(6);
    let plan = Plan::by_rule(&profile, Rule::SquareRoot, None).unwrap();
    let mut report = Report::new(&profile, &plan);
    let mut measured = example::invented(&profile, &plan);
    measured.events.reverse();
    report.measured = Some(measured.clone());
    let turned = report.svg(Figure::Memory).unwrap();
    measured.events.reverse();
    report.measured = Some(measured.clone());
    assert_eq!(report.svg(Figure::Memory).unwrap(), turned);
    for event in &mut measured.events {
        (event.live_bytes, event.peak_bytes) = (None, None);
    }
    report.measured = Some(measured);
    let svg = report.svg(Figure::Memory).unwrap();
    assert!(!svg.contains("class=\"measured\""), "nothing was seen, so nothing is drawn");
}

#[test]
fn transfers_are_drawn_and_waiting_is_told() {
    let (profile, plan) = example::offloading(12);
    let html = Report::new(&profile, &plan).html().unwrap();
    // Twelve offloads and twelve fetches, in both looks and both legends.
    assert_eq!(marks(&html, "transfer"), 2 * (24 + 1));
    assert!(html.contains("offload x3 of block.2 to host"));
    assert!(words(&html).contains("for transfers."));
}

#[test]
fn ten_thousand_stages_stay_small_and_quick() {
    let profile = example::equal(10_000);
    for rule in [Rule::SquareRoot, Rule::EVERY_ONE, Rule::StoreAll] {
        let plan = Plan::by_rule(&profile, rule, None).unwrap();
        let mut report = Report::new(&profile, &plan);
        let point = |index: u64| Point {
            budget_bytes: Bytes::mebibytes(index),
            step_ns: Nanos::new(60_000_000_000 - index * 1_000_000),
        };
        report.frontier = (1..10_000).map(point).collect();
        report.measured = Some(example::invented(&profile, &plan));
        let start = Instant::now();
        let html = report.html().unwrap();
        let took = start.elapsed();
        let drawn = marks(&html, "mark");
        assert!(html.len() < 1_000_000, "{rule}: {} bytes", html.len());
        assert!(drawn < 6_000, "{rule}: {drawn} marks");
        // A guard against going through the plan for every mark, not a measurement.
        assert!(took < Duration::from_secs(10), "{rule}: {took:?}");
        assert!(words(&html).contains("drawn together") && words(&html).contains("every 125 stages"));
    }
}
