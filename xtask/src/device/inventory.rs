//! Which devices there are: a TOML file, and two devices that need none.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::workspace;

/// What an inventory looks like; a part of the messages about one that is wrong.
const EXAMPLE: &str = "[[device]]\nname = \"orin\"\ntransport = \"ssh\"\nhost = \"192.0.2.7\"\n\
                       target = \"aarch64-unknown-linux-musl\"";

/// A target that emulated and real boards share: linked statically, no C compiler needed.
pub const ARM_LINUX: &str = "aarch64-unknown-linux-musl";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inventory {
    #[serde(default)]
    device: Vec<Device>,
}

/// How a device is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Local,
    Qemu,
    Ssh,
    Adb,
}

impl Kind {
    /// The name in an inventory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Qemu => "qemu",
            Self::Ssh => "ssh",
            Self::Adb => "adb",
        }
    }
}

/// A device.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    pub name: String,
    pub transport: Kind,
    /// Target triple to build for; unless given, this machine's for `local`, Android's for `adb`, and
    /// 64-bit ARM Linux for the others.
    target: Option<String>,
    /// Of `ssh`: where it is. Of `adb`: the machine of the adb server, if it is another.
    pub host: Option<String>,
    pub port: Option<u16>,
    pub user: Option<String>,
    /// Of `ssh`: the private key's file.
    pub key: Option<PathBuf>,
    /// Of `ssh`: the file of known host keys.
    pub known_hosts: Option<PathBuf>,
    /// Of `adb`: which of the attached devices.
    pub serial: Option<String>,
    /// Folder on the device under which each run makes its own.
    work: Option<String>,
    /// What the device can do and a run has to know.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Memory in MB that runs of models may hold.
    pub budget: Option<u64>,
    #[serde(default)]
    pub labels: Vec<String>,
    /// Seconds that a step may take.
    #[serde(default = "default_timeout")]
    pub timeout: u64,
    /// Seconds beyond a limit until a device that says nothing counts as lost.
    #[serde(default = "default_grace")]
    pub grace: u64,
    /// Seconds until a lost device is tried again; twice as long after each attempt.
    #[serde(default = "default_pause")]
    pub pause: u64,
}

fn default_timeout() -> u64 {
    600
}

fn default_grace() -> u64 {
    30
}

fn default_pause() -> u64 {
    2
}

/// What `capabilities` may hold. A word after `kernels:` is what `doctor` has to choose.
const CAPABILITIES: &str = "kernels:NAME";

impl Device {
    fn built_in(name: &str, transport: Kind, capabilities: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            transport,
            target: None,
            host: None,
            port: None,
            user: None,
            key: None,
            known_hosts: None,
            serial: None,
            work: None,
            capabilities: capabilities.iter().map(|c| (*c).to_owned()).collect(),
            budget: None,
            labels: vec!["built-in".to_owned()],
            timeout: default_timeout(),
            grace: default_grace(),
            pause: default_pause(),
        }
    }

    /// The target triple; `None` for this machine's own.
    pub fn target(&self) -> Option<&str> {
        match (self.target.as_deref(), self.transport) {
            (Some(target), _) => Some(target),
            (None, Kind::Local) => None,
            (None, Kind::Adb) => Some("aarch64-linux-android"),
            (None, Kind::Qemu | Kind::Ssh) => Some(ARM_LINUX),
        }
    }

    /// The folder on the device under which runs make theirs.
    pub fn work(&self) -> String {
        if let Some(work) = &self.work {
            return work.trim_end_matches('/').to_owned();
        }
        match self.transport {
            // Temporary files of Android's shell user lie here; programs may be run from it.
            Kind::Adb => "/data/local/tmp/leanstream-device".to_owned(),
            Kind::Ssh => "/var/tmp/leanstream-device".to_owned(),
            Kind::Local | Kind::Qemu => {
                std::env::temp_dir().join("leanstream-device").to_string_lossy().into_owned()
            }
        }
    }

    /// What `doctor` has to choose on this device, if the inventory says.
    pub fn kernels(&self) -> Option<&str> {
        self.capabilities.iter().find_map(|c| c.strip_prefix("kernels:"))
    }

    /// Whether speeds there say nothing about hardware.
    pub fn is_emulated(&self) -> bool {
        self.transport == Kind::Qemu
    }

    fn check(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty()
            || !self.name.chars().all(plain)
            || self.name.starts_with(['.', '-'])
        {
            bail!("a device's name is made of letters, digits and -_., not {:?}", self.name);
        }
        if self.transport == Kind::Ssh && self.host.is_none() {
            bail!("{}: a device reached by ssh needs a host", self.name);
        }
        for word in [self.host.as_ref(), self.user.as_ref(), self.serial.as_ref()] {
            if word.is_some_and(|w| w.starts_with('-') || w.contains(char::is_whitespace)) {
                bail!("{}: {:?} is no host, user or serial", self.name, word);
            }
        }
        let work = self.work();
        if !work.starts_with('/') || work.chars().any(|c| !plain(c) && c != '/') || work.len() < 5 {
            bail!("{}: the work folder {work:?} has to be an absolute, plain path", self.name);
        }
        if let Some(word) = self.capabilities.iter().find(|c| !c.starts_with("kernels:")) {
            bail!("{}: unknown capability {word:?}; there is {CAPABILITIES}", self.name);
        }
        if self.timeout == 0 {
            bail!("{}: a timeout of 0 seconds lets nothing run", self.name);
        }
        Ok(())
    }
}

/// The devices of `file`, or of devices.toml where there is one, and the built-in ones.
pub fn load(file: Option<&Path>) -> Result<Vec<Device>> {
    let default = workspace::root().join("devices.toml");
    let path = match file {
        Some(file) => Some(file),
        None => Some(default.as_path()).filter(|path| path.exists()),
    };
    let listed = match path {
        Some(path) => {
            let text = fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            parse(&text).with_context(|| format!("in {}", path.display()))?
        }
        None => Vec::new(),
    };
    let mut devices = listed;
    let built_in = [
        Device::built_in("local", Kind::Local, &[]),
        Device::built_in("qemu", Kind::Qemu, &["kernels:neon-dotprod"]),
    ];
    for device in built_in {
        if !devices.iter().any(|d| d.name == device.name) {
            devices.push(device);
        }
    }
    Ok(devices)
}

fn parse(text: &str) -> Result<Vec<Device>> {
    let inventory: Inventory =
        toml::from_str(text).with_context(|| format!("an inventory looks like\n{EXAMPLE}\n"))?;
    for (i, device) in inventory.device.iter().enumerate() {
        device.check()?;
        if inventory.device[..i].iter().any(|d| d.name == device.name) {
            bail!("two devices are called {}", device.name);
        }
    }
    Ok(inventory.device)
}

/// The devices that are called one of `wanted` or carry it as a label, each once.
pub fn select(devices: &[Device], wanted: &[String]) -> Result<Vec<Device>> {
    let matches = |d: &Device, word: &String| d.name == *word || d.labels.contains(word);
    for word in wanted {
        if !devices.iter().any(|d| matches(d, word)) {
            let names: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
            bail!("no device has the name or label {word}; there are {}", names.join(", "));
        }
    }
    let chosen = devices.iter().filter(|d| wanted.iter().any(|word| matches(d, word)));
    Ok(chosen.cloned().collect())
}

/// A table of devices.
pub fn table(devices: &[Device]) -> String {
    let mut out = format!("{:<12} {:<9} {:<28} labels\n", "name", "transport", "target");
    for d in devices {
        let target = d.target().unwrap_or("this machine's");
        let labels = d.labels.join(" ");
        out += &format!("{:<12} {:<9} {target:<28} {labels}\n", d.name, d.transport.name());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(more: &str) -> Result<Vec<Device>> {
        parse(&format!("[[device]]\nname = \"a\"\ntransport = \"ssh\"\nhost = \"h\"\n{more}"))
    }

    #[test]
    fn a_device_is_a_few_lines() {
        let devices = device("port = 2222\nlabels = [\"arm\", \"farm\"]\nbudget = 700\n").unwrap();
        assert_eq!((devices[0].port, devices[0].budget), (Some(2222), Some(700)));
        assert_eq!(devices[0].target(), Some(ARM_LINUX));
        assert_eq!(devices[0].work(), "/var/tmp/leanstream-device");
        assert_eq!(devices[0].timeout, 600);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (more, says) in [
            ("prot = 1", "prot"),
            ("work = \"relative\"", "absolute"),
            ("work = \"/a b/c d\"", "plain path"),
            ("user = \"-oProxyCommand=x\"", "no host, user"),
            ("capabilities = [\"wings\"]", "wings"),
            ("timeout = 0", "0 seconds"),
            ("[[device]]\nname = \"a\"\ntransport = \"local\"", "two devices"),
            ("[[device]]\nname = \"b\"\ntransport = \"ssh\"", "needs a host"),
            ("[[device]]\nname = \"../b\"\ntransport = \"local\"", "letters"),
        ] {
            let message = format!("{:#}", device(more).unwrap_err());
            assert!(message.contains(says), "{more}: {message}");
        }
    }

    #[test]
    fn names_and_labels_select_each_device_once() {
        let devices = device("labels = [\"x\", \"y\"]").unwrap();
        let select = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            select(&devices, &words).map(|found| found.len())
        };
        assert_eq!(select(&["x", "y", "a"]).unwrap(), 1);
        assert!(select(&["z"]).unwrap_err().to_string().contains("no device"));
    }

    #[test]
    fn two_devices_need_no_file() {
        let devices = load(None).unwrap();
        assert!(devices.iter().any(|d| d.name == "local" && d.target().is_none()));
        let qemu = devices.iter().find(|d| d.name == "qemu").unwrap();
        assert_eq!(qemu.kernels(), Some("neon-dotprod"));
    }
}
