//! The folder of a run on a device: made, kept, and gone in any case.
//!
//! A shell on the device, the keeper, makes the folder and waits for the end of its standard input, which
//! the driver holds open. Whatever ends the driver or the connection ends the keeper's input; it then
//! kills what runs in the folder and removes it. What a keeper could not remove, since the device lost
//! power or the keeper was killed itself, the next run removes: folders are named after the process that
//! drives them, and hold the time when they are over at the latest.

use std::time::{Duration, Instant};

use super::link::{Fault, Heard, Link, Talk, nonce};
use super::owner::Owner;
use super::script;

const QUICK: Duration = Duration::from_secs(60);

/// The folder of this run on a device.
#[derive(Debug)]
pub struct Session {
    /// Its path there.
    pub work: String,
    keeper: Talk,
    nonce: String,
}

impl Session {
    /// Removes what earlier runs left, makes the folder and leaves a keeper there.
    pub fn open(link: &Link, base: &str, attempt: u32, limit: Duration) -> Result<Self, Fault> {
        sweep(link, base)?;
        let name = Owner::here().folder(&format!("{attempt}-{}", &nonce()[..6]));
        let nonce = nonce();
        let script = script::keep(base, &name, &nonce, limit.as_secs());
        link.log.line("keep", &format!("{base}/{name}"));
        let mut keeper = Talk::start(link.transport.shell(&script))?;
        let deadline = Instant::now() + QUICK;
        let said = format!("@@{nonce} ");
        loop {
            match keeper.next(deadline)? {
                Heard::Out(line) => {
                    match line.strip_prefix(&said).and_then(|l| l.split_once(' ')) {
                        Some(("work", work)) => {
                            return Ok(Self { work: work.to_owned(), keeper, nonce });
                        }
                        Some((_, tool)) => {
                            return Err(Fault::Refused(format!(
                                "the device has no program {tool}"
                            )));
                        }
                        None => link.log.line("keep", &line),
                    }
                }
                Heard::Err(line) => link.log.line("keep", &line),
                Heard::Silence => return Err(keeper.lost("no answer in 60 s")),
                Heard::End => return Err(keeper.lost("the folder of the run could not be made")),
            }
        }
    }

    /// Whether the folder is still kept; if not, nothing that happened in it counts.
    pub fn check(&mut self) -> Result<(), Fault> {
        if self.keeper.is_running() {
            return Ok(());
        }
        Err(self.keeper.lost("the keeper of the run's folder is gone"))
    }

    /// Ends what runs in the folder and removes it; says if that could not be seen to the end.
    pub fn close(mut self, link: &Link, base: &str) {
        self.keeper.hang_up();
        let deadline = Instant::now() + QUICK;
        let end = format!("@@{} gone", self.nonce);
        loop {
            match self.keeper.next_regardless(deadline) {
                Heard::Out(line) if line == end => {
                    link.log.line("keep", "the folder is gone");
                    return;
                }
                Heard::Out(line) | Heard::Err(line) => link.log.line("keep", &line),
                Heard::Silence | Heard::End => break,
            }
        }
        link.log.line("keep", &format!("nobody said that {} is gone", self.work));
        // By a connection of its own; if there is none to be had, the next run does it.
        let name = self.work.rsplit('/').next().unwrap_or_default().to_owned();
        let removed = link.run_regardless(&script::remove(base, &[name]), QUICK);
        if let Err(fault) = removed {
            let work = &self.work;
            link.log.tell(&format!("{work} may be left until the next run there: {fault}"));
        }
    }
}

/// Removes the folders of runs that are over.
fn sweep(link: &Link, base: &str) -> Result<(), Fault> {
    let listed = link.run(&script::list(base), QUICK)?;
    let stale: Vec<String> = listed.text.lines().filter_map(stale_in).collect();
    if stale.is_empty() {
        return Ok(());
    }
    link.log.tell(&format!("removing what an earlier run left: {}", stale.join(", ")));
    link.run(&script::remove(base, &stale), QUICK).map(drop)
}

/// The folder in a line of [`script::list`], if its run is over.
fn stale_in(line: &str) -> Option<String> {
    let mut words = line.strip_prefix("run ")?.split(' ');
    let (name, until, now) = (words.next()?, words.next()?, words.next()?);
    let (until, now): (u64, u64) = (until.parse().ok()?, now.parse().ok()?);
    let is_over = match Owner::of_folder(name) {
        Some(owner) if owner.is_of_this_machine() => !owner.is_alive(),
        // A folder without a time is being made at this moment, or was left in that one.
        Some(_) | None => until != 0 && now > until,
    };
    is_over.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_living_drivers_are_left_alone() {
        let mine = Owner::here().folder("x");
        assert_eq!(stale_in(&format!("run {mine} 5 9")), None);
        let dead = "run-ffff-1-1-x";
        assert_eq!(stale_in(&format!("run {dead} 9 5")), None, "its time is not over");
        assert_eq!(stale_in(&format!("run {dead} 5 9")).as_deref(), Some(dead));
        assert_eq!(stale_in(&format!("run {dead} 0 9")), None);
        assert_eq!(stale_in("else"), None);
    }
}
