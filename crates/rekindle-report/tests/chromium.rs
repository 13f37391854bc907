//! The page in a real browser: Debian's Chromium, without a window.
//!
//! `REKINDLE_CHROMIUM` names another binary, `REKINDLE_SKIP_CHROMIUM=1` leaves these tests out, and
//! `REKINDLE_SCREENSHOTS` names a folder that keeps the pictures.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may fail by panicking")]

mod example;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rekindle_report::{Figure, Report};

/// What a browser made of a page.
struct Seen {
    dom: String,
    /// Lines of the console, errors among them.
    console: Vec<String>,
}

/// `None` only when the tests are to be left out.
fn chromium() -> Option<PathBuf> {
    if std::env::var_os("REKINDLE_SKIP_CHROMIUM").is_some_and(|value| value == "1") {
        eprintln!("left out: REKINDLE_SKIP_CHROMIUM=1");
        return None;
    }
    let given = std::env::var_os("REKINDLE_CHROMIUM").map(PathBuf::from);
    let names = given.map_or_else(
        || ["chromium", "chromium-browser", "google-chrome"].map(PathBuf::from).to_vec(),
        |given| vec![given],
    );
    let works = |name: &PathBuf| {
        let run = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        run.is_ok_and(|status| status.success())
    };
    let found = names.iter().find(|name| works(name));
    assert!(
        found.is_some(),
        "no Chromium among {names:?}; install it (`apt-get install --no-install-recommends chromium`), name its binary \
         in REKINDLE_CHROMIUM, or leave these tests out with REKINDLE_SKIP_CHROMIUM=1"
    );
    found.cloned()
}

fn command(chromium: &Path, folder: &Path, dark: bool) -> Command {
    let mut command = Command::new(chromium);
    command
        // In a container there is one user, and the sandbox wants two.
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--enable-logging=stderr",
        ])
        .arg("--hide-scrollbars")
        .arg(format!("--user-data-dir={}", folder.join(format!("user-{dark}")).display()));
    if dark {
        command.arg("--force-dark-mode");
    }
    command
}

/// Loads a page, runs its scripts, and gives back what became of it.
fn load(chromium: &Path, folder: &Path, html: &str, dark: bool) -> Seen {
    let file = folder.join("page.html");
    fs::write(&file, html).unwrap();
    let output = command(chromium, folder, dark)
        .args(["--window-size=1200,900", "--dump-dom"])
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let errors = String::from_utf8_lossy(&output.stderr);
    let console = errors.lines().filter(|line| line.contains("CONSOLE")).map(ToOwned::to_owned).collect();
    Seen { dom: String::from_utf8(output.stdout).unwrap(), console }
}

/// The page with a script at its end.
fn with_script(html: &str, script: &str) -> String {
    html.replace("</body>", &format!("<script>{script}</script></body>"))
}

/// The page in a frame as wide as a phone, because a window is never narrower than 500 pixels. The frame's words come
/// out as text of the outer page.
fn in_a_phone(folder: &Path, html: &str, script: &str) -> String {
    fs::write(folder.join("inner.html"), with_script(html, script)).unwrap();
    r#"<!DOCTYPE html><html style="color-scheme:light dark"><body style="margin:0"><p id="told"></p>
<script>addEventListener("message", function (event) { document.getElementById("told").textContent = event.data; });</script>
<iframe src="inner.html" style="border:0;width:390px;height:3000px"></iframe></body></html>"#
        .to_owned()
}

fn told(seen: &Seen) -> &str {
    let from = seen.dom.find(r#"id="told">"#).map(|at| at + r#"id="told">"#.len()).unwrap();
    seen.dom[from..].split('<').next().unwrap()
}

fn screenshot(chromium: &Path, folder: &Path, name: &str, html: &str, size: (u32, u32), dark: bool) {
    let Some(kept) = std::env::var_os("REKINDLE_SCREENSHOTS").map(PathBuf::from) else { return };
    fs::create_dir_all(&kept).unwrap();
    let file = folder.join("picture.html");
    fs::write(&file, html).unwrap();
    let status = command(chromium, folder, dark)
        .arg(format!("--window-size={},{}", size.0, size.1))
        .arg(format!("--screenshot={}", kept.join(name).with_extension("png").display()))
        .arg(format!("file://{}", file.display()))
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

/// Everything a report can have.
fn full_page() -> String {
    let profile = example::gpt();
    let plan = example::quarter(&profile);
    let mut report = Report::new(&profile, &plan);
    report.frontier = example::frontier(&profile);
    report.measured = Some(example::invented(&profile, &plan));
    report.totals = Some(example::totals());
    report.html().unwrap()
}

#[test]
fn the_page_loads_in_light_and_dark_without_an_error_and_every_mark_tells_its_stage() {
    let Some(chromium) = chromium() else { return };
    let folder = tempfile::tempdir().unwrap();
    let html = full_page();
    let ground =
        "document.body.setAttribute('data-ground', getComputedStyle(document.body).backgroundColor);";
    for (dark, colour) in [(false, "rgb(253, 253, 251)"), (true, "rgb(21, 23, 26)")] {
        let seen = load(&chromium, folder.path(), &with_script(&html, ground), dark);
        assert_eq!(seen.console, Vec::<String>::new());
        assert!(seen.dom.contains(&format!(r#"data-ground="{colour}""#)), "dark {dark}: another ground");
        // The script took every title over.
        assert!(seen.dom.contains(r#"data-tip="backward of block.23"#), "no tooltip for block.23");
        assert!(seen.dom.contains(r#"data-tip="forward of embed"#), "no tooltip for embed");
        assert_eq!(seen.dom.matches("<title>").count(), 1, "only the page's own title is left");
    }
    screenshot(&chromium, folder.path(), "light", &html, (1100, 4100), false);
    screenshot(&chromium, folder.path(), "dark", &html, (1100, 4100), true);
}

#[test]
fn an_error_on_the_console_would_be_seen() {
    let Some(chromium) = chromium() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broken = with_script(&full_page(), "console.error('deliberate');");
    let seen = load(&chromium, folder.path(), &broken, false);
    assert!(seen.console.iter().any(|line| line.contains("deliberate")), "{:?}", seen.console);
    // So would something from the network: the page's own policy forbids it.
    let calling = with_script(&full_page(), "new Image().src = 'https://example.org/a.png';");
    let seen = load(&chromium, folder.path(), &calling, false);
    assert!(seen.console.iter().any(|line| line.contains("Content Security Policy")), "{:?}", seen.console);
}

#[test]
fn a_tooltip_follows_the_pointer_the_finger_and_the_keys() {
    let Some(chromium) = chromium() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = "
        var tip = document.getElementById('tip'), told = [];
        function note() { told.push(tip.hidden ? '-' : tip.textContent.split('\\n')[0]); }
        var figure = document.querySelector('#plan svg.wide');
        var mark = figure.querySelector('.mark.backward');
        note();
        mark.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: 300, clientY: 300}));
        note();
        document.body.dispatchEvent(new PointerEvent('pointermove', {bubbles: true}));
        note();
        mark.dispatchEvent(new PointerEvent('pointerdown', {bubbles: true, pointerType: 'touch'}));
        note();
        document.body.dispatchEvent(new PointerEvent('pointerdown', {bubbles: true}));
        var memory = document.querySelector('#memory svg.wide');
        memory.focus();
        ['ArrowRight', 'ArrowRight', 'ArrowLeft', 'End', 'Escape'].forEach(function (key) {
            memory.dispatchEvent(new KeyboardEvent('keydown', {key: key}));
            note();
        });
        document.body.setAttribute('data-told', told.join('|'));";
    let seen = load(&chromium, folder.path(), &with_script(&full_page(), script), false);
    assert_eq!(seen.console, Vec::<String>::new());
    let from = seen.dom.find("data-told=\"").map(|at| at + 11).unwrap();
    let told: Vec<&str> = seen.dom[from..].split('"').next().unwrap().split('|').collect();
    assert_eq!(told[..4], ["-", "backward of embed", "-", "backward of embed"], "{told:?}");
    assert!(told[4] == "keep x0, the input" && told[5].contains("forward of block."), "{told:?}");
    assert_eq!(told[6], told[4]);
    assert!(told[7].contains("embed") && told[8] == "-", "{told:?}");
}

#[test]
fn nothing_is_wider_than_a_phone_in_light_and_dark() {
    let Some(chromium) = chromium() else { return };
    let folder = tempfile::tempdir().unwrap();
    let long = "a_name_without_a_single_place_to_break_that_goes_on_and_on_for_longer_than_any_phone_is_wide";
    let stages = (0..3).map(|index| example::stage(format!("{long}.{index}"), 1)).collect();
    let input = rekindle_plan::Bytes::new(1 << 18);
    let named = rekindle_plan::Profile::new(long, long, input, stages).unwrap();
    let plan = example::quarter_or_more(&named);
    let named = Report::new(&named, &plan).html().unwrap();
    let parts = ["qkv", "attention", "projection", "up", "activation", "down"];
    let parts =
        (8..14).flat_map(|block| parts.map(|part| example::stage(format!("block.{block}.{part}"), 1)));
    let parts = rekindle_plan::Profile::new("parts", "none", input, parts.collect()).unwrap();
    let plan = example::quarter_or_more(&parts);
    let parts = Report::new(&parts, &plan).html().unwrap();
    let script = "
        var root = document.documentElement, dark = matchMedia('(prefers-color-scheme: dark)').matches;
        var figure = document.querySelector('#memory svg.narrow').getBoundingClientRect();
        var labels = [...document.querySelectorAll('#plan svg.narrow .number')];
        var left = Math.floor(Math.min(...labels.map(function (label) { return label.getBBox().x; })));
        parent.postMessage([innerWidth, root.scrollWidth, Math.round(figure.width), dark, left].join(' '), '*');";
    for (name, html) in [("phone", &full_page()), ("phone-names", &named), ("phone-parts", &parts)] {
        for dark in [false, true] {
            let outer = in_a_phone(folder.path(), html, script);
            let seen = load(&chromium, folder.path(), &outer, dark);
            assert_eq!(seen.console, Vec::<String>::new());
            let told: Vec<&str> = told(&seen).split(' ').collect();
            assert_eq!(told[..2], ["390", "390"], "{name}, dark {dark}: {told:?}");
            let figure: u32 = told[2].parse().unwrap();
            assert!((330..=390).contains(&figure), "{name}: the figure is {figure} wide");
            assert_eq!(told[3], dark.to_string());
            assert!(told[4].parse::<i32>().unwrap() >= 0, "{name}: a label begins at {}", told[4]);
            let name = if dark { format!("{name}-dark") } else { name.to_owned() };
            screenshot(
                &chromium,
                folder.path(),
                &name,
                &outer.replace("3000px", "6000px"),
                (500, 6000),
                dark,
            );
        }
    }
}

#[test]
fn a_name_cannot_run_a_script() {
    let Some(chromium) = chromium() else { return };
    let folder = tempfile::tempdir().unwrap();
    let evil = "</title></style><script>document.body.setAttribute('data-owned','1')</script><img src=x onerror=alert(1)>";
    let stages = vec![example::stage(evil, 1), example::stage(format!("{evil}\"'&amp;"), 1)];
    let profile =
        rekindle_plan::Profile::new(evil, evil, rekindle_plan::Bytes::new(1 << 18), stages).unwrap();
    let plan = example::quarter_or_more(&profile);
    let mut report = Report::new(&profile, &plan);
    let mut measured = example::invented(&profile, &plan);
    measured.set_by = Some(evil.to_owned());
    report.measured = Some(measured);
    let seen = load(&chromium, folder.path(), &report.html().unwrap(), false);
    assert_eq!(seen.console, Vec::<String>::new());
    assert!(!seen.dom.contains("data-owned=\"1\"") && !seen.dom.contains("<img"), "a name became markup");
    assert_eq!(seen.dom.matches("<script").count(), 1, "the page has one script, its own");
}

#[test]
fn figures_for_papers_and_long_plans_load() {
    let Some(chromium) = chromium() else { return };
    let folder = tempfile::tempdir().unwrap();
    let profile = example::gpt();
    let plan = example::quarter(&profile);
    let mut report = Report::new(&profile, &plan);
    report.frontier = example::frontier(&profile);
    report.measured = Some(example::invented(&profile, &plan));
    report.totals = Some(example::totals());
    let figures = Figure::ALL.map(|figure| (figure, report.svg(figure).unwrap()));
    for (figure, svg) in &figures {
        screenshot(&chromium, folder.path(), &figure.to_string(), &svg_page(svg), (800, 560), false);
    }
    let size = "document.querySelectorAll('svg').forEach(function (svg) {
        svg.setAttribute('data-size', [svg.getBBox().width > 300, svg.querySelectorAll('text').length > 3]); });";
    let seen = load(
        &chromium,
        folder.path(),
        &with_script(&svg_page(&figures.map(|figure| figure.1).concat()), size),
        false,
    );
    assert_eq!(seen.console, Vec::<String>::new());
    assert_eq!(seen.dom.matches("data-size=\"true,true\"").count(), 4, "all four are drawn");
    let (profile, plan) = example::offloading(60);
    let html = Report::new(&profile, &plan).html().unwrap();
    assert_eq!(load(&chromium, folder.path(), &html, false).console, Vec::<String>::new());
    screenshot(&chromium, folder.path(), "offloading", &html, (1100, 3200), false);
    let profile = example::equal(10_000);
    let plan = rekindle_plan::Plan::by_rule(&profile, rekindle_plan::Rule::SquareRoot, None).unwrap();
    let html = Report::new(&profile, &plan).html().unwrap();
    assert_eq!(load(&chromium, folder.path(), &html, false).console, Vec::<String>::new());
    screenshot(&chromium, folder.path(), "long", &html, (1100, 3600), false);
}

fn svg_page(svg: &str) -> String {
    format!("<!DOCTYPE html><html><body>{svg}</body></html>")
}
