//! The terminal while a run is watched: drawn on from a thread of its own, and given back whatever happens.

use std::io::{IsTerminal, Stderr, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rekindle::Bytes;

use crate::failure::Failure;
use crate::meter;
use crate::view::{View, draw};

/// How long a key waits, and how old a figure gets.
const REFRESH: Duration = Duration::from_millis(150);

/// The view on the terminal. It is drawn on standard error, so that results can go elsewhere; dropping it gives the
/// terminal back.
pub(crate) struct Screen {
    shared: Arc<Shared>,
    drawing: Option<JoinHandle<()>>,
    /// The most bytes alive before this step: each step's peak is measured by itself.
    pub(crate) earlier_peak: Bytes,
}

struct Shared {
    run: Mutex<Run>,
    /// The terminal, while it is ours.
    terminal: Mutex<Option<Terminal<CrosstermBackend<Stderr>>>>,
    ending: AtomicBool,
}

struct Run {
    view: View,
    started: Instant,
    /// What was alive before the step.
    before: Bytes,
}

/// Refuses a view where nobody could see it.
pub(crate) fn check() -> Result<(), Failure> {
    let dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    if stderr().is_terminal() && !dumb {
        return Ok(());
    }
    let found = match dumb {
        true => "the terminal is a dumb one, which cannot be drawn on",
        false => "standard error is not a terminal",
    };
    Err(Failure::request(
        anyhow::anyhow!("--tui draws on standard error, but {found}"),
        "leave --tui out; without it, progress is a line where there is a terminal and nothing elsewhere",
    ))
}

impl Screen {
    /// Takes the terminal, and begins to draw.
    pub(crate) fn open(view: View) -> Result<Self, Failure> {
        check()?;
        let shared = Arc::new(Shared {
            run: Mutex::new(Run { view, started: Instant::now(), before: alive() }),
            terminal: Mutex::new(None),
            ending: AtomicBool::new(false),
        });
        let mut screen = Self { shared: Arc::clone(&shared), drawing: None, earlier_peak: Bytes::ZERO };
        let ours = Arc::clone(&shared);
        let theirs = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // The words of a panic must not go down with the screen they are printed on.
            ours.give_back();
            theirs(panic);
        }));
        // From here on, an error drops the screen, and that gives back what was taken.
        let refuse = |error: std::io::Error| {
            let error = anyhow::Error::new(error).context("the terminal cannot be drawn on");
            Failure::request(error, "leave --tui out")
        };
        shared.take().map_err(refuse)?;
        let drawing = std::thread::Builder::new().name("view".to_owned()).spawn(move || shared.watch());
        screen.drawing = Some(drawing.map_err(refuse)?);
        Ok(screen)
    }

    /// A step begins.
    pub(crate) fn begin(&mut self) {
        self.earlier_peak = self.earlier_peak.max(meter::peak());
        meter::reset_peak();
        self.shared.run().before = alive();
    }

    /// A step was run; whether to go on.
    pub(crate) fn ran(&self, loss: f32) -> bool {
        let mut run = self.shared.run();
        let peak = meter::peak().saturating_sub(run.before);
        run.view.ran(loss, peak);
        !self.shared.ending.load(Ordering::Relaxed)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.shared.give_back();
        if let Some(drawing) = self.drawing.take() {
            // It sees that the terminal is gone. If it panicked, the words are out already.
            let _ = drawing.join();
        }
        // While panicking, hooks cannot be touched; then the process ends anyway.
        if !std::thread::panicking() {
            drop(std::panic::take_hook());
        }
    }
}

impl Shared {
    fn run(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> std::io::Result<()> {
        let mut terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner);
        enable_raw_mode()?;
        // It is ours to give back from now on, also when the next line fails.
        let taken = execute!(stderr(), EnterAlternateScreen);
        let made = taken.and_then(|()| Terminal::new(CrosstermBackend::new(stderr())));
        match made {
            Ok(made) => *terminal = Some(made),
            Err(error) => {
                leave();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives the terminal back, once. Does not wait for long: whoever draws may be the one that panics.
    fn give_back(&self) {
        for _ in 0..100 {
            match self.terminal.try_lock() {
                Ok(mut terminal) => {
                    return if terminal.take().is_some() {
                        leave()
                    };
                }
                Err(TryLockError::Poisoned(error)) => {
                    return if error.into_inner().take().is_some() {
                        leave()
                    };
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        leave();
    }

    /// Draws and listens until the terminal is gone.
    fn watch(&self) {
        loop {
            if !self.redraw() {
                return;
            }
            match event::poll(REFRESH) {
                Ok(false) => {}
                Ok(true) => match event::read() {
                    Ok(Event::Key(key)) => self.pressed(key),
                    Ok(_) => {}
                    Err(_) => return,
                },
                Err(_) => return,
            }
        }
    }

    /// Draws the run as it is now; whether there is still a terminal for it.
    fn redraw(&self) -> bool {
        let mut terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(terminal) = terminal.as_mut() else { return false };
        // Not a copy: that would count as memory of the step.
        let mut run = self.run();
        run.view.now = alive().saturating_sub(run.before);
        run.view.elapsed = run.started.elapsed();
        run.view.ending = self.ending.load(Ordering::Relaxed);
        terminal.draw(|frame| draw(frame, &run.view)).is_ok()
    }

    fn pressed(&self, key: KeyEvent) {
        let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        let end = interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
        if !end || key.kind == KeyEventKind::Release {
            return;
        }
        let asked_before = self.ending.swap(true, Ordering::Relaxed);
        if asked_before && interrupt {
            self.give_back();
            // As a shell counts a process that ended by an interrupt.
            std::process::exit(130);
        }
    }
}

fn leave() {
    // Nothing can be done about a terminal that does not take these.
    let _ = execute!(stderr(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

fn alive() -> Bytes {
    meter::live()
}
