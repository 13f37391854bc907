//! Long work beside Python: other threads go on, and Ctrl-C is answered.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::Refusal;

/// How long Ctrl-C may wait for an answer.
const PATIENCE: Duration = Duration::from_millis(50);

/// Does `work` on a thread of its own.
///
/// Solvers stop by themselves at their time limit and in no other way: after Ctrl-C the thread that nobody waits for any
/// more goes on until then, holding nothing of Python's.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (done, result) = channel();
    let worker = std::thread::Builder::new().name("rekindle".to_owned()).spawn(move || {
        // Nobody listens any more after Ctrl-C.
        let _ = done.send(work());
    });
    worker.map_err(|error| Refusal::new("RekindleError", format!("cannot start a thread: {error}")))?;
    let mut result = result;
    loop {
        // A receiver is for one thread at a time, so it is handed in and out.
        let (receiver, received) = py.detach(move || {
            let received = result.recv_timeout(PATIENCE);
            (result, received)
        });
        result = receiver;
        match received {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let words = "the planner stopped without an answer, which it never should";
                return Err(Refusal::new("RekindleError", words)
                    .hint("please report it with the profile and the arguments")
                    .into());
            }
        }
    }
}
