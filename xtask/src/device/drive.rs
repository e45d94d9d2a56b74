//! A run on one device: send, run step by step, bring back, clean up; again where the connection broke.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::bundle::{Kind, Packed, Step};
use super::inventory::Device;
use super::link::{Done, Fault, Link};
use super::results::{Case, Figure, Found, Suite, read_figures, read_tests, shown};
use super::session::Session;
use super::transport::quoted;
use super::{script, stop};

/// How often a device is tried.
const ATTEMPTS: u32 = 3;
/// What may pass until an archive is there.
const SENDING: Duration = Duration::from_secs(900);
/// Name of the archive on the device.
const ARCHIVE: &str = "bundle.tar.gz";
/// Memory in MB that models may hold where the inventory names none.
const BUDGET_MB: u64 = 64;
/// Random cases of a property test under emulation, instead of 256.
const EMULATED_CASES: &str = "16";

/// One device and what is to be run there.
#[derive(Debug)]
pub struct Drive<'a> {
    pub device: &'a Device,
    pub packed: &'a Packed,
    pub link: Link<'a>,
    /// Where what comes back is put.
    pub folder: &'a Path,
}

impl Drive<'_> {
    /// Runs every step, and says what was found, faults included.
    pub fn run(&self) -> Found {
        let began = Instant::now();
        let mut found = Found {
            device: self.device.name.clone(),
            transport: self.device.transport.name().to_owned(),
            target: self.packed.bundle.target.clone(),
            commit: self.packed.bundle.commit.clone(),
            emulated: self.device.is_emulated(),
            ..Found::default()
        };
        let mut pause = Duration::from_secs(self.device.pause);
        for attempt in 1..=ATTEMPTS {
            let Err(fault) = self.attempt(attempt, &mut found) else { break };
            self.link.log.tell(&fault.to_string());
            match fault {
                Fault::Lost(why) => {
                    found.lost.push(why);
                    if attempt == ATTEMPTS {
                        found.error = Some(format!("the connection was lost {ATTEMPTS} times"));
                    }
                }
                other => {
                    found.error = Some(other.to_string());
                    break;
                }
            }
            stop::sleep(pause);
            pause *= 2;
        }
        found.seconds = began.elapsed().as_secs_f64();
        found
    }

    /// One attempt, which begins with the first step that has no result.
    fn attempt(&self, attempt: u32, found: &mut Found) -> Result<(), Fault> {
        let base = self.device.work();
        let steps = self.packed.bundle.steps.len() as u64;
        let limit = SENDING + Duration::from_secs(self.device.timeout.saturating_mul(steps));
        let mut session = Session::open(&self.link, &base, attempt, limit)?;
        let result = self.send_and_run(&mut session, found);
        // A keeper that is gone is why a step failed, and not the other way round.
        let result = match result {
            Err(fault @ (Fault::Stopped | Fault::NoSpace(_))) => Err(fault),
            Err(fault) => Err(session.check().err().unwrap_or(fault)),
            Ok(()) => Ok(()),
        };
        session.close(&self.link, &base);
        result
    }

    fn send_and_run(&self, session: &mut Session, found: &mut Found) -> Result<(), Fault> {
        self.send(session)?;
        let facts = self.link.run(script::FACTS, Duration::from_secs(30))?;
        let facts = facts.text.lines().filter_map(|l| l.strip_prefix("fact ")?.split_once('='));
        found.facts = facts.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        if found.emulated {
            found.facts.insert("emulator".to_owned(), self.emulator()?);
        }
        for step in &self.packed.bundle.steps[found.suites.len()..] {
            self.link.log.tell(&step.name);
            let done = self.run_step(session, step)?;
            // Whatever a program did while its folder was taken away is not its fault.
            session.check()?;
            let suite = self.judge(session, step, &done, found)?;
            found.suites.push(suite);
        }
        Ok(())
    }

    fn emulator(&self) -> Result<String, Fault> {
        let [program, ..] = super::transport::EMULATOR;
        let done = self.link.run(&format!("{program} --version"), Duration::from_secs(30))?;
        Ok(done.text.lines().next().unwrap_or_default().to_owned())
    }

    fn send(&self, session: &Session) -> Result<(), Fault> {
        let Packed { archive, bytes, .. } = self.packed;
        self.link.log.tell(&format!("sending {:.1} MB", *bytes as f64 / 1e6));
        self.link.push(archive, &format!("{}/{ARCHIVE}", session.work), SENDING)?;
        let done = self.link.run(&script::unpack(&session.work, ARCHIVE, *bytes), SENDING)?;
        let told = last_line(&done.text);
        match done.code {
            0 => Ok(()),
            _ if done.text.contains("No space left") => Err(Fault::NoSpace(told)),
            _ if done.text.contains("@@short") => Err(Fault::Lost(told)),
            code => Err(Fault::Refused(format!("unpacking ended with {code}: {told}"))),
        }
    }

    fn run_step(&self, session: &Session, step: &Step) -> Result<Done, Fault> {
        let limit = self.device.timeout;
        let work = &session.work;
        let mut text = format!("cd {}/{} || exit 1\n", quoted(work), quoted(&step.folder));
        for (name, value) in self.environment(work) {
            text += &format!("export {name}={}\n", quoted(&value));
        }
        for (i, command) in step.commands.iter().enumerate() {
            let is_last = i + 1 == step.commands.len();
            let to = if is_last && step.kind.is_json() {
                format!(" >{}", quoted(&format!("{work}/out/{}", json_name(step))))
            } else {
                String::new()
            };
            let words: Vec<String> = self.words(command, work).iter().map(|w| quoted(w)).collect();
            text += &format!("timeout -k 5 {limit} {}{to} || exit $?\n", words.join(" "));
        }
        let commands = step.commands.len().max(1) as u64;
        // `timeout` kills what does not heed it after 5 s more.
        self.link.run(&text, Duration::from_secs((limit + 5).saturating_mul(commands)))
    }

    /// A command of the bundle, as it is on the device.
    fn words(&self, command: &[String], work: &str) -> Vec<String> {
        let megabytes = self.device.budget.unwrap_or(BUDGET_MB);
        let mut words: Vec<String> = Vec::new();
        for (i, word) in command.iter().enumerate() {
            match word.strip_prefix("./").filter(|_| i == 0) {
                Some(program) => {
                    words.extend(self.link.transport.runner().iter().map(|w| (*w).to_owned()));
                    words.push(format!("{work}/{program}"));
                }
                None => words.push(
                    word.replace("{root}", work).replace("{budget}", &format!("{megabytes}MB")),
                ),
            }
        }
        words
    }

    fn environment(&self, work: &str) -> Vec<(&'static str, String)> {
        let mut environment = vec![
            ("LEANSTREAM_FIXTURES", format!("{work}/fixtures")),
            ("LEANSTREAM_MODELS", format!("{work}/models")),
            ("INSTA_WORKSPACE_ROOT", work.to_owned()),
            ("INSTA_UPDATE", "no".to_owned()),
            // What programs leave behind lies in the folder of the run.
            ("TMPDIR", format!("{work}/tmp")),
            ("XDG_CACHE_HOME", format!("{work}/tmp/cache")),
        ];
        if self.device.is_emulated() {
            environment.push(("PROPTEST_CASES", EMULATED_CASES.to_owned()));
        }
        environment
    }

    /// What a step's end means.
    fn judge(
        &self,
        session: &Session,
        step: &Step,
        done: &Done,
        found: &mut Found,
    ) -> Result<Suite, Fault> {
        let seconds = done.time.as_secs_f64();
        let limit = self.device.timeout;
        let is_late = matches!(done.code, 124 | 137) && seconds >= limit as f64;
        let mut cases = match &step.kind {
            Kind::Tests => read_tests(&done.text, done.code),
            _ if done.code != 0 => {
                let why = format!("{}\n{}", shown(done.code), done.text.trim());
                vec![Case::of(short(step), Err(why))]
            }
            Kind::Plain => vec![Case::of(short(step), Ok(()))],
            kind => {
                let json = self.fetch(session, step)?;
                vec![Case::of(short(step), self.read(kind, step, json, found))]
            }
        };
        if is_late {
            cases.push(Case::of("(time limit)", Err(format!("not done after {limit} s"))));
        }
        Ok(Suite { name: step.name.clone(), seconds, cases })
    }

    /// Brings the JSON of a step back.
    fn fetch(&self, session: &Session, step: &Step) -> Result<Result<Value, String>, Fault> {
        let name = json_name(step);
        let here = self.folder.join(&name);
        let there = format!("{}/out/{name}", session.work);
        self.link.pull(&there, &here, Duration::from_secs(60))?;
        let text = fs::read_to_string(&here)
            .map_err(|error| Fault::Lost(format!("{name} did not come back: {error}")))?;
        Ok(serde_json::from_str(&text).map_err(|error| format!("{error} in\n{text}")))
    }

    fn read(
        &self,
        kind: &Kind,
        step: &Step,
        json: Result<Value, String>,
        found: &mut Found,
    ) -> Result<(), String> {
        let json = json?;
        match kind {
            Kind::Golden { text } => {
                let got = json["text"].as_str().unwrap_or_default();
                if !text.is_empty() && got.starts_with(text.as_str()) {
                    let speed = json["tok_per_s"].as_f64();
                    let name = format!("{} run", short(step));
                    found.figures.extend(speed.map(|mean| figure(name, mean)));
                    return Ok(());
                }
                Err(format!("answered {got:?} instead of {text:?}"))
            }
            Kind::Bench => {
                let model = short(step).trim_start_matches("bench_");
                found.figures.extend(read_figures(model, &json)?);
                Ok(())
            }
            Kind::Doctor => {
                let kernels = json["kernels"].as_str().map(ToOwned::to_owned);
                found.kernels.clone_from(&kernels);
                found.doctor = json;
                match (self.device.kernels(), kernels) {
                    (Some(want), got) if got.as_deref() != Some(want) => {
                        Err(format!("kernels are {got:?} instead of {want}"))
                    }
                    _ => Ok(()),
                }
            }
            Kind::Tests | Kind::Plain => Ok(()),
        }
    }
}

fn figure(name: String, mean: f64) -> Figure {
    Figure { name, unit: "tok/s".to_owned(), mean, sd: None }
}

fn json_name(step: &Step) -> String {
    format!("{}.json", short(step))
}

/// The name of a step without its package.
fn short(step: &Step) -> &str {
    step.name.rsplit("::").next().unwrap_or(&step.name)
}

fn last_line(text: &str) -> String {
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("nothing was said").trim().to_owned()
}
