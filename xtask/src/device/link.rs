//! Running scripts and copying files over a transport: limits, ends, logs.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::log::Log;
use super::stop;
use super::transport::Transport;

/// How long a program whose work is done may take to end.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Why a device could not do what was asked. A failed test is none of these.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The connection broke or never came about: worth another try.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The device's disk is full.
    #[error("no space left on the device: {0}")]
    NoSpace(String),
    /// Trying again would not help: a key, a name, a missing tool, a local program.
    #[error("{0}")]
    Refused(String),
    /// The run was asked to stop.
    #[error("stopped")]
    Stopped,
}

/// How a script ended.
#[derive(Clone, Debug)]
pub struct Done {
    pub code: i32,
    /// What it printed on standard output and standard error.
    pub text: String,
    pub time: Duration,
}

/// A device's transport with the log of what passes over it.
#[derive(Debug)]
pub struct Link<'a> {
    pub transport: &'a Transport,
    pub log: &'a Log,
    /// Beyond a limit that the device itself keeps, how much longer its answer may take.
    pub grace: Duration,
}

impl Link<'_> {
    /// Runs `script` to its end. Its exit code is what the script's shell says it is; that of the
    /// transport's program is not believed.
    pub fn run(&self, script: &str, limit: Duration) -> Result<Done, Fault> {
        self.run_to_end(script, limit, true)
    }

    /// The same, even when the run was asked to stop: for cleaning up.
    pub fn run_regardless(&self, script: &str, limit: Duration) -> Result<Done, Fault> {
        self.run_to_end(script, limit, false)
    }

    fn run_to_end(&self, script: &str, limit: Duration, heed: bool) -> Result<Done, Fault> {
        let nonce = nonce();
        let framed = format!("(\n{script}\n) 2>&1 </dev/null\nprintf '\\n@@{nonce} %d\\n' $?");
        self.log.line("run", script);
        let began = Instant::now();
        let mut talk = Talk::start(self.transport.shell(&framed))?;
        let end = format!("@@{nonce} ");
        let mut text = String::new();
        loop {
            let deadline = began + limit + self.grace;
            let heard = if heed { talk.next(deadline)? } else { talk.next_regardless(deadline) };
            match heard {
                Heard::Out(line) => match line.strip_prefix(&end) {
                    Some(code) => {
                        let code = code.trim().parse().unwrap_or(-1);
                        talk.finish();
                        // The end begins on a line of its own.
                        text.truncate(text.strip_suffix('\n').map_or(0, str::len));
                        self.log.line("end", &format!("exit code {code}"));
                        return Ok(Done { code, text, time: began.elapsed() });
                    }
                    None => {
                        self.log.line("out", &line);
                        text.push_str(&line);
                        text.push('\n');
                    }
                },
                Heard::Err(line) => self.log.line("err", &line),
                Heard::Silence => {
                    return Err(
                        talk.lost(&format!("no answer in {} s", (limit + self.grace).as_secs()))
                    );
                }
                Heard::End => return Err(talk.lost("the script's end was never told")),
            }
        }
    }

    /// Copies a file there.
    pub fn push(&self, local: &Path, remote: &str, limit: Duration) -> Result<(), Fault> {
        self.copy(self.transport.push(local, remote), limit)
    }

    /// Copies a file here.
    pub fn pull(&self, remote: &str, local: &Path, limit: Duration) -> Result<(), Fault> {
        self.copy(self.transport.pull(remote, local), limit)
    }

    fn copy(&self, command: Command, limit: Duration) -> Result<(), Fault> {
        self.log.line("copy", &crate::workspace::shown(&command));
        let deadline = Instant::now() + limit;
        let mut talk = Talk::start(command)?;
        talk.input = None;
        loop {
            match talk.next(deadline)? {
                Heard::Out(line) | Heard::Err(line) => self.log.line("copy", &line),
                Heard::Silence => {
                    return Err(talk.lost(&format!("not copied in {} s", limit.as_secs())));
                }
                Heard::End => break,
            }
        }
        match talk.child.wait() {
            Ok(status) if status.success() => Ok(()),
            status => Err(talk.lost(&format!("copying failed: {status:?}"))),
        }
    }
}

/// What comes from a program.
pub enum Heard {
    Out(String),
    Err(String),
    /// The deadline passed.
    Silence,
    /// Its output ended.
    End,
}

/// A running program of the transport. Its end is the end of this value.
#[derive(Debug)]
pub struct Talk {
    child: Child,
    /// Held open for as long as the script is to run.
    input: Option<ChildStdin>,
    lines: Receiver<(bool, String)>,
    /// The last that it complained of.
    complaints: String,
    /// When it was first seen to have ended.
    gone_since: Option<Instant>,
}

impl Talk {
    /// Starts `command`, in a process group of its own: Ctrl-C at the terminal is for the driver.
    pub fn start(mut command: Command) -> Result<Self, Fault> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            Fault::Refused(format!("cannot start {program}: {error}"))
        })?;
        let (sender, lines) = channel();
        if let Some(out) = child.stdout.take() {
            read_lines(out, false, sender.clone());
        }
        if let Some(err) = child.stderr.take() {
            read_lines(err, true, sender);
        }
        let input = child.stdin.take();
        Ok(Self { child, input, lines, complaints: String::new(), gone_since: None })
    }

    /// The next line, or why there is none.
    pub fn next(&mut self, deadline: Instant) -> Result<Heard, Fault> {
        loop {
            if stop::is_asked() {
                return Err(Fault::Stopped);
            }
            let soon = Instant::now() + Duration::from_millis(100);
            match self.next_regardless(deadline.min(soon)) {
                Heard::Silence if Instant::now() < deadline => {}
                heard => return Ok(heard),
            }
        }
    }

    /// The next line, stop asked or not.
    pub fn next_regardless(&mut self, deadline: Instant) -> Heard {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(Duration::from_millis(100))) {
                Ok((false, line)) => return Heard::Out(line),
                Ok((true, line)) => {
                    self.complain(&line);
                    return Heard::Err(line);
                }
                Err(RecvTimeoutError::Disconnected) => return Heard::End,
                // What it started may hold its output open, as adb's server does.
                Err(RecvTimeoutError::Timeout) if self.is_long_gone() => return Heard::End,
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Heard::Silence,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Whether it ended long enough ago for all that it said to have come.
    fn is_long_gone(&mut self) -> bool {
        if self.is_running() {
            return false;
        }
        self.gone_since.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(1)
    }

    fn complain(&mut self, line: &str) {
        if self.complaints.len() < 2000 && !line.trim().is_empty() {
            self.complaints += &format!("{}; ", line.trim());
        }
    }

    /// Whether the program still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Closes the program's standard input.
    pub fn hang_up(&mut self) {
        self.input = None;
    }

    /// Waits for the program, whose work is done.
    fn finish(&mut self) {
        self.input = None;
        let deadline = Instant::now() + LAST_WORDS;
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The fault that the program's complaints tell of.
    pub fn lost(&mut self, what: &str) -> Fault {
        classify(self.complaints.trim_end_matches([';', ' ']), what)
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.input = None;
        if self.is_running() {
            // What it runs on the device is ended there, by the keeper of the run's folder.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Words that say that another try would end in the same way.
const FINAL: [&str; 8] = [
    "Permission denied (",
    "Host key verification failed",
    "Could not resolve hostname",
    "unauthorized",
    "more than one device",
    "Permission denied",
    "Read-only file system",
    "no such identity",
];

fn classify(complaints: &str, what: &str) -> Fault {
    let told = if complaints.is_empty() { what } else { complaints };
    if complaints.contains("No space left") {
        return Fault::NoSpace(told.to_owned());
    }
    if FINAL.iter().any(|word| complaints.contains(word)) {
        return Fault::Refused(told.to_owned());
    }
    Fault::Lost(told.to_owned())
}

fn read_lines(from: impl Read + Send + 'static, is_err: bool, to: Sender<(bool, String)>) {
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        // Tests may print what is not text.
        while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line);
            // Some transports end lines as terminals do.
            if to.send((is_err, text.trim_end_matches(['\n', '\r']).to_owned())).is_err() {
                break;
            }
            line.clear();
        }
    });
}

/// A word that no program prints by chance.
pub fn nonce() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}", RandomState::new().hash_one(Instant::now()))
}
