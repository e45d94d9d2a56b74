//! What it takes to build for a target, found or installed.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use super::inventory::ARM_LINUX;
use crate::{setup, workspace};

/// Stands in for [`ARM_LINUX`] where only the distribution has a compiler for ARM.
const ARM_GNU: &str = "aarch64-unknown-linux-gnu";
/// Android's interface that programs are linked for: that of Android 10.
const ANDROID_API: u32 = 29;

/// How cargo builds for a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toolchain {
    /// `None`: for this machine.
    pub target: Option<String>,
    env: Vec<(String, String)>,
}

impl Toolchain {
    /// Finds, or installs where that is possible, what building for `target` takes.
    pub fn find(target: Option<&str>) -> Result<Self> {
        let Some(target) = target else { return Ok(Self::default()) };
        if has_std(target) || (setup::rustup_target(target) && has_std(target)) {
            return Self::with_std(target);
        }
        if target == ARM_LINUX {
            setup::need_arm_compiler()?;
            let mut found = Self::new(ARM_GNU);
            found.link_with("aarch64-linux-gnu-gcc");
            // Dynamically linked programs hang in thread creation under the emulator.
            found.set("RUSTFLAGS", "-C target-feature=+crt-static");
            found.set("RUSTC", "/usr/bin/rustc");
            return Ok(found);
        }
        bail!("the standard library for {target} is missing: rustup target add {target}")
    }

    fn new(target: &str) -> Self {
        Self { target: Some(target.to_owned()), env: Vec::new() }
    }

    fn with_std(target: &str) -> Result<Self> {
        let mut found = Self::new(target);
        if std::env::var_os(found.linker_variable()).is_some() {
            return Ok(found);
        }
        if target.ends_with("-android") {
            let linker = android_linker(target)?;
            found.link_with(&linker.to_string_lossy());
            // Beside the C compiler, which links.
            let cxx = format!("CXX_{}", target.replace('-', "_"));
            found.set(&cxx, &format!("{}++", linker.to_string_lossy()));
        } else if target.ends_with("-linux-musl") {
            // The target brings its C library, and the compiler a linker.
            found.link_with("rust-lld");
        } else if target == ARM_GNU {
            setup::need_arm_linker()?;
            setup::need_arm_cxx()?;
            found.link_with("aarch64-linux-gnu-gcc");
        }
        Ok(found)
    }

    fn linker_variable(&self) -> String {
        let target = self.target.clone().unwrap_or_default();
        format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"))
    }

    fn link_with(&mut self, linker: &str) {
        self.set(&self.linker_variable(), linker);
    }

    fn set(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    /// Cargo with `subcommand` for the target.
    pub fn cargo(&self, subcommand: &str) -> Command {
        let mut cargo = workspace::cargo();
        cargo.args([subcommand, "--locked"]);
        if let Some(target) = &self.target {
            cargo.args(["--target", target]);
        }
        cargo.envs(self.env.iter().map(|(name, value)| (name, value)));
        // Debugging information would be most of what is sent.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_STRIP", "debuginfo");
        cargo
    }
}

/// Whether the compiler has the standard library for `target`.
pub fn has_std(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--print", "target-libdir", "--target", target]).stderr(Stdio::null());
    let Ok(output) = command.output() else { return false };
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success() && PathBuf::from(path).is_dir()
}

fn android_linker(target: &str) -> Result<PathBuf> {
    let Some(ndk) = std::env::var_os("ANDROID_NDK_HOME") else {
        bail!(
            "linking for {target} takes Android's NDK: unpack it and set ANDROID_NDK_HOME to its folder"
        );
    };
    let host = if cfg!(target_os = "macos") { "darwin-x86_64" } else { "linux-x86_64" };
    let folder = PathBuf::from(ndk).join("toolchains/llvm/prebuilt").join(host).join("bin");
    let linker = folder.join(format!("{target}{ANDROID_API}-clang"));
    if !linker.exists() {
        bail!("{} is not there: is ANDROID_NDK_HOME the folder of an NDK?", linker.display());
    }
    Ok(linker)
}
