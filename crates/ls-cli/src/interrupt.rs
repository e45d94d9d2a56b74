//! Ctrl-C: the first ends the present answer, the second the program.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// What shells report for a program that Ctrl-C ended.
pub const EXIT_CODE: u8 = 130;

static CANCEL: AtomicBool = AtomicBool::new(false);
static WAITING: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Ctrl-C was pressed before there was anything to show.
#[derive(Debug)]
pub struct Interrupted(pub Cow<'static, str>);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Takes over Ctrl-C and the request to terminate; again is no different from once.
pub fn install() -> anyhow::Result<()> {
    if INSTALLED.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    ctrlc::set_handler(|| {
        if WAITING.load(Ordering::SeqCst) {
            // The terminal shows ^C after the prompt: the shell's prompt belongs on a new line.
            let _ = writeln!(std::io::stdout());
            std::process::exit(0);
        }
        if CANCEL.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(EXIT_CODE));
        }
    })?;
    Ok(())
}

/// Set by the first Ctrl-C.
pub fn flag() -> &'static AtomicBool {
    &CANCEL
}

/// Whether Ctrl-C was pressed since the last call.
pub fn take() -> bool {
    CANCEL.swap(false, Ordering::SeqCst)
}

/// Runs `wait`, which waits for the user: there is no answer to end, so Ctrl-C leaves at once.
pub fn while_waiting<T>(wait: impl FnOnce() -> T) -> T {
    CANCEL.store(false, Ordering::SeqCst);
    WAITING.store(true, Ordering::SeqCst);
    let result = wait();
    WAITING.store(false, Ordering::SeqCst);
    result
}
