//! How a device is spoken to: the commands that run a script there, send a file and fetch one.
//!
//! A transport only makes commands. What they may take, and what their ends mean, is the same for all
//! ([`Link`](super::link::Link)), so that a test of one is mostly a test of each.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use super::inventory::{Device, Kind};

/// The emulator of 64-bit ARM. `max`: every extension that it knows.
pub const EMULATOR: [&str; 3] = ["qemu-aarch64-static", "-cpu", "max"];

/// A way to a device.
#[derive(Clone, Debug)]
pub enum Transport {
    /// This machine.
    Local,
    /// This machine, with programs run by an emulator.
    Qemu,
    Ssh(Ssh),
    Adb(Adb),
}

/// A machine that the system's ssh and scp reach.
#[derive(Clone, Debug)]
pub struct Ssh {
    destination: String,
    options: Vec<OsString>,
    port: Option<u16>,
}

/// A phone that adb reaches.
#[derive(Clone, Debug)]
pub struct Adb {
    options: Vec<OsString>,
}

impl Transport {
    /// The way that the inventory describes.
    pub fn new(device: &Device) -> Self {
        match device.transport {
            Kind::Local => Self::Local,
            Kind::Qemu => Self::Qemu,
            Kind::Ssh => Self::Ssh(Ssh::new(device)),
            Kind::Adb => Self::Adb(Adb::new(device)),
        }
    }

    /// Runs `script` with the device's shell.
    pub fn shell(&self, script: &str) -> Command {
        match self {
            Self::Local | Self::Qemu => command("sh", ["-c".into(), script.into()]),
            Self::Ssh(ssh) => {
                let mut command = command("ssh", ssh.options.iter().cloned());
                command.args(ssh.port.iter().flat_map(|p| ["-p".to_owned(), p.to_string()]));
                // The user's own shell may be one that is not like sh.
                command.args([
                    "-T",
                    "--",
                    &ssh.destination,
                    &format!("exec sh -c {}", quoted(script)),
                ]);
                command
            }
            Self::Adb(adb) => {
                let mut command = command("adb", adb.options.iter().cloned());
                command.args(["shell", script]);
                command
            }
        }
    }

    /// Copies a file to the device.
    pub fn push(&self, local: &Path, remote: &str) -> Command {
        match self {
            Self::Local | Self::Qemu => command("cp", [local.into(), remote.into()]),
            Self::Ssh(ssh) => ssh.scp(local.into(), format!("{}:{remote}", ssh.destination).into()),
            Self::Adb(adb) => adb.run(["push".into(), local.into(), remote.into()]),
        }
    }

    /// Copies a file from the device.
    pub fn pull(&self, remote: &str, local: &Path) -> Command {
        match self {
            Self::Local | Self::Qemu => command("cp", [remote.into(), local.into()]),
            Self::Ssh(ssh) => ssh.scp(format!("{}:{remote}", ssh.destination).into(), local.into()),
            Self::Adb(adb) => adb.run(["pull".into(), remote.into(), local.into()]),
        }
    }

    /// What stands before programs of the target.
    pub fn runner(&self) -> &'static [&'static str] {
        match self {
            Self::Qemu => &EMULATOR,
            _ => &[],
        }
    }
}

impl Ssh {
    fn new(device: &Device) -> Self {
        let host = device.host.clone().unwrap_or_default();
        let destination = match &device.user {
            Some(user) => format!("{user}@{host}"),
            None => host,
        };
        // A question would wait for ever; a shared connection would outlive the run.
        let mut options: Vec<OsString> = Vec::new();
        for option in [
            "BatchMode=yes",
            "ControlMaster=no",
            "ControlPath=none",
            "ConnectTimeout=15",
            "ServerAliveInterval=10",
            "ServerAliveCountMax=3",
        ] {
            options.extend(["-o".into(), option.into()]);
        }
        if let Some(key) = &device.key {
            options.extend(["-i".into(), key.into(), "-o".into(), "IdentitiesOnly=yes".into()]);
        }
        if let Some(file) = &device.known_hosts {
            // A file named for this device is the whole truth about it; no user's file is added to.
            let mut option = OsString::from("UserKnownHostsFile=");
            option.push(file);
            options.extend(["-o".into(), option]);
        }
        Self { destination, options, port: device.port }
    }

    fn scp(&self, from: OsString, to: OsString) -> Command {
        let mut command = command("scp", self.options.iter().cloned());
        command.args(self.port.iter().flat_map(|p| ["-P".to_owned(), p.to_string()]));
        command.args(["-q".into(), "--".into(), from, to]);
        command
    }
}

impl Adb {
    fn new(device: &Device) -> Self {
        let mut options: Vec<OsString> = Vec::new();
        if let Some(host) = &device.host {
            options.extend(["-H".into(), host.into()]);
        }
        if let Some(port) = device.port {
            options.extend(["-P".into(), port.to_string().into()]);
        }
        if let Some(serial) = &device.serial {
            options.extend(["-s".into(), serial.into()]);
        }
        Self { options }
    }

    fn run(&self, args: impl IntoIterator<Item = OsString>) -> Command {
        let mut command = command("adb", self.options.iter().cloned());
        command.args(args);
        command
    }
}

fn command(program: &str, args: impl IntoIterator<Item = OsString>) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// A word as a shell reads it back.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_word_is_read_back_as_it_was() {
        for word in ["", "a b", "it's", "$HOME `x` \"y\" \\ \n*"] {
            let script = format!("printf %s {}", quoted(word));
            let output = Transport::Local.shell(&script).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}
