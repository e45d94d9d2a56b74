//! Which process of which machine a folder belongs to, and whether it is still there.

use std::fs;

use sha2::{Digest, Sha256};

/// A process that cannot be mistaken for a later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// A short name of the machine, and of the time since it was started.
    machine: String,
    pid: u32,
    /// When the process began, in ticks of the system.
    began: u64,
}

impl Owner {
    /// This process.
    pub fn here() -> Self {
        let pid = std::process::id();
        Self { machine: machine(), pid, began: began(pid).unwrap_or(0) }
    }

    /// Name for a folder of this owner: `run-MACHINE-PID-BEGAN-MORE`.
    pub fn folder(&self, more: &str) -> String {
        format!("run-{}-{}-{}-{more}", self.machine, self.pid, self.began)
    }

    /// The owner that a folder's name tells of.
    pub fn of_folder(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("run-")?.split('-');
        let (machine, pid, began) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self {
            machine: machine.to_owned(),
            pid: pid.parse().ok()?,
            began: began.parse().ok()?,
        })
    }

    /// Whether it runs, or ran, here.
    pub fn is_of_this_machine(&self) -> bool {
        self.machine == machine()
    }

    /// Whether it runs, for an owner of this machine.
    pub fn is_alive(&self) -> bool {
        match began(self.pid) {
            Some(began) => began == self.began,
            // Where the system does not show processes as files, nobody is declared dead.
            None => !fs::exists("/proc/self/stat").unwrap_or(false),
        }
    }
}

/// The system's boot has an identity of its own: after another boot, no process is left.
fn machine() -> String {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let name = fs::read("/etc/machine-id").unwrap_or_default();
    let digest = Sha256::new().chain_update(boot).chain_update(name).finalize();
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// When a process began; `None` where it does not run. A zombie does not.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_known_by_its_folder() {
        let here = Owner::here();
        let named = Owner::of_folder(&here.folder("1-abc")).unwrap();
        assert_eq!(named, here);
        assert!(named.is_of_this_machine() && named.is_alive());
        assert_eq!(Owner::of_folder("bundle-x"), None);
    }

    #[test]
    fn a_later_process_of_that_number_is_another() {
        let here = Owner::here();
        assert!(!Owner { began: here.began + 1, ..here.clone() }.is_alive());
        assert!(!Owner { machine: "0".to_owned(), ..here }.is_of_this_machine());
    }
}
