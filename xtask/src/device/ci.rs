//! What continuous integration asks of devices: the emulated one, and that Android's code compiles.

use anyhow::{Context, Result, bail};

use super::args::DeviceArgs;
use super::inventory::ARM_LINUX;
use super::toolchain;
use crate::{setup, workspace};

/// A target of phones, of which only the code is checked: linking takes Android's own tools.
const ANDROID: &str = "aarch64-linux-android";
/// Names devices that have to be there; without it, what is missing is named and skipped.
const REQUIRED: &str = "LEANSTREAM_REQUIRE_DEVICES";

/// The step of `ci`; returns why it was skipped, if it was. Offline, nothing is installed for it.
pub fn run(offline: bool) -> Result<Option<String>> {
    android()?;
    let required = std::env::var(REQUIRED).is_ok_and(|names| names.split(',').any(|n| n == "qemu"));
    if let Err(error) = ready(offline) {
        if required {
            return Err(error).context("the emulated device is required");
        }
        return Ok(Some(format!("{error:#}")));
    }
    let args = DeviceArgs { on: vec!["qemu".to_owned()], ..DeviceArgs::default() };
    super::run(&args).map(|()| None)
}

/// Makes sure that the emulated device can be built for and run, and that tests find an sshd.
fn ready(offline: bool) -> Result<()> {
    if offline {
        if !setup::has_arm_emulator() || !toolchain::has_std(ARM_LINUX) {
            bail!("offline, and the emulator or the standard library for {ARM_LINUX} is missing");
        }
        return Ok(());
    }
    setup::need_arm_emulator()?;
    setup::need_sshd()?;
    toolchain::Toolchain::find(Some(ARM_LINUX)).map(drop)
}

fn android() -> Result<()> {
    if !toolchain::has_std(ANDROID) {
        println!("not checked for phones: rustup target add {ANDROID}");
        return Ok(());
    }
    let mut cargo = workspace::cargo();
    cargo.args(["clippy", "--locked", "--workspace", "--exclude", "xtask", "--target", ANDROID]);
    if std::env::var_os("ANDROID_NDK_HOME").is_none() {
        // Its C++ takes the NDK's compiler.
        cargo.args(["--exclude", "ls-vk", "--no-default-features"]);
    }
    workspace::run(cargo.args(["--", "-D", "warnings"]))
}
