//! Ctrl-C and the request to end: devices are cleaned up first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

static ASKED: AtomicBool = AtomicBool::new(false);

/// From here on, Ctrl-C and SIGTERM only ask; asking twice ends the driver at once, and devices then
/// clean up by themselves when they find the connection gone.
pub fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        eprintln!("stopping: devices are cleaned up…");
    })
    .context("cannot take over Ctrl-C")
}

/// Whether the run is to end.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// Sleeps, unless asked to stop.
pub fn sleep(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end && !is_asked() {
        std::thread::sleep(Duration::from_millis(50));
    }
}
