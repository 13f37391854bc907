//! Flags of a thread, set for as long as something runs.

use std::cell::Cell;
use std::thread::LocalKey;

/// Runs something with the flag set, and puts back what was, also when it panics.
pub(crate) fn during<T>(flag: &'static LocalKey<Cell<bool>>, run: impl FnOnce() -> T) -> T {
    struct Restore(&'static LocalKey<Cell<bool>>, bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _restore = Restore(flag, flag.replace(true));
    run()
}
