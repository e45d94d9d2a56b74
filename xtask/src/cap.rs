//! Programs under a memory limit, with a time limit, of which every printed line is kept.
//!
//! The limit is a memory cgroup's, so the page cache counts: a program that maps a file larger than
//! the limit reads it from the disk again and again, as it would on a machine of that size.

mod cgroup;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;

pub use cgroup::{Cgroup, Home};

/// How often the end of a program is looked for.
const POLL: Duration = Duration::from_millis(10);

/// Joins the cgroup and becomes the program, so that no page of it is charged elsewhere.
const JOIN: &str = r#"echo $$ > "$1" || exit 125; shift; exec "$@""#;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// With success.
    Done,
    /// With an error, which is the last line that it printed on stderr.
    Failed(String),
    /// By SIGKILL, which nobody here sent.
    Killed,
    /// By us, since it took too long.
    TimedOut,
}

/// What a program did.
#[derive(Clone, Debug)]
pub struct Finished {
    pub end: End,
    /// What it printed on stdout, with the time since its start.
    pub lines: Vec<(Duration, String)>,
    /// From start to end.
    pub time: Duration,
    /// The most memory that was charged to the cgroup, page cache included.
    pub peak_bytes: Option<u64>,
}

impl Finished {
    /// All of stdout.
    pub fn stdout(&self) -> String {
        self.lines.iter().flat_map(|(_, line)| [line.as_str(), "\n"]).collect()
    }
}

impl End {
    /// In words, for a table; `None` where all went well.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::Done => None,
            Self::Failed(why) => Some(why.clone()),
            Self::Killed => Some("killed, probably out of memory".to_owned()),
            Self::TimedOut => Some("took too long".to_owned()),
        }
    }

    fn of(status: ExitStatus, errors: &str) -> Self {
        if status.success() {
            return Self::Done;
        }
        if is_sigkill(status) {
            return Self::Killed;
        }
        let last = errors.lines().rev().find(|line| !line.trim().is_empty());
        let why = last.map(|line| line.strip_prefix("error: ").unwrap_or(line).to_owned());
        Self::Failed(why.unwrap_or_else(|| status.to_string()))
    }
}

/// Makes Ctrl-C end the program that runs and then this one, with its cgroup removed.
pub fn catch_interrupts() -> Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst)).context("cannot catch Ctrl-C")
}

/// Runs a program to its end, or until `timeout`; within `cgroup` where there is one.
pub fn run(
    command: &Command,
    cgroup: Option<&Cgroup>,
    timeout: Option<Duration>,
) -> Result<Finished> {
    let mut command = joined(command, cgroup);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = command.get_program().to_string_lossy().into_owned();
    let began = Instant::now();
    let mut child = Running(command.spawn().with_context(|| format!("cannot start {name}"))?);
    let stdout = child.0.stdout.take().context("stdout is piped")?;
    let mut stderr = child.0.stderr.take().context("stderr is piped")?;
    let lines = thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines.map(|line| (began.elapsed(), line)).collect::<Vec<_>>()
    });
    let errors = thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is worth keeping.
        let _ = stderr.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let status = child.wait(began, timeout)?;
    let time = began.elapsed();
    let lines = lines.join().expect("a reader of lines does not panic");
    let errors = errors.join().expect("a reader of bytes does not panic");
    let end = status.map_or(End::TimedOut, |status| End::of(status, &errors));
    Ok(Finished { end, lines, time, peak_bytes: cgroup.and_then(Cgroup::peak_bytes) })
}

/// The command, as one that enters the cgroup first.
fn joined(command: &Command, cgroup: Option<&Cgroup>) -> Command {
    let mut joined = match cgroup {
        None => Command::new(command.get_program()),
        Some(cgroup) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", JOIN, "sh"]).arg(cgroup.members()).arg(command.get_program());
            shell
        }
    };
    joined.args(command.get_args());
    joined
}

/// A child that does not outlive this value.
struct Running(Child);

impl Running {
    /// Waits for the end; `None` if `timeout` came first.
    fn wait(&mut self, began: Instant, timeout: Option<Duration>) -> Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.0.try_wait().context("cannot wait for a program")? {
                return Ok(Some(status));
            }
            if INTERRUPTED.load(Ordering::SeqCst) {
                bail!("interrupted");
            }
            if timeout.is_some_and(|timeout| began.elapsed() >= timeout) {
                self.end();
                return Ok(None);
            }
            thread::sleep(POLL);
        }
    }

    fn end(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(unix)]
fn is_sigkill(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(9)
}

#[cfg(not(unix))]
fn is_sigkill(_: ExitStatus) -> bool {
    false
}

/// Drops what the page cache holds of files, so that the next run starts cold.
pub fn drop_page_cache(system: &Path) -> Result<()> {
    let path = system.join("proc/sys/vm/drop_caches");
    std::fs::write(&path, "1\n").with_context(|| {
        format!("the page cache is not dropped, which needs root: cannot write {}", path.display())
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_are_kept_and_success_is_done() {
        let finished = run(&shell("echo a; echo b"), None, None).unwrap();
        assert_eq!((finished.end.clone(), finished.stdout()), (End::Done, "a\nb\n".to_owned()));
        assert_eq!(finished.peak_bytes, None);
    }

    #[test]
    fn an_error_is_the_last_line_of_stderr() {
        let end =
            run(&shell("echo a >&2; echo error: b >&2; echo >&2; exit 1"), None, None).unwrap().end;
        assert_eq!(end, End::Failed("b".to_owned()));
    }

    #[test]
    fn a_kill_is_not_a_normal_end() {
        let end = run(&shell("kill -9 $$"), None, None).unwrap().end;
        assert_eq!(end.trouble().unwrap(), "killed, probably out of memory");
    }

    #[test]
    fn after_the_time_limit_there_is_what_was_printed_before() {
        let timeout = Some(Duration::from_secs(2));
        let finished = run(&shell("echo a; exec sleep 60"), None, timeout).unwrap();
        assert_eq!((finished.end.clone(), finished.stdout()), (End::TimedOut, "a\n".to_owned()));
    }

    #[test]
    fn the_program_is_started_after_it_has_joined() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("sys/fs/cgroup/memory")).unwrap();
        let home = Home::find(folder.path()).unwrap();
        let cgroup = Cgroup::create(&home, 1 << 20).unwrap();
        let finished = run(&shell("echo $$"), Some(&cgroup), None).unwrap();
        let member = std::fs::read_to_string(cgroup.members()).unwrap();
        assert_eq!(finished.stdout(), member);
    }
}
