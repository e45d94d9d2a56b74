//! What continuous integration asks of devices: the emulated one, and that Android's code compiles.

use anyhow::{Context, Result};

use super::args::DeviceArgs;
use super::toolchain;
use crate::{setup, workspace};

/// A target of phones, of which only the code is checked: linking takes Android's own tools.
const ANDROID: &str = "aarch64-linux-android";
/// Names devices that have to be there; without it, what is missing is named and skipped.
const REQUIRED: &str = "LEANSTREAM_REQUIRE_DEVICES";

/// The step of `ci`; returns why it was skipped, if it was.
pub fn run() -> Result<Option<String>> {
    android()?;
    let required = std::env::var(REQUIRED).is_ok_and(|names| names.split(',').any(|n| n == "qemu"));
    let there = setup::need_arm_emulator()
        .and_then(|()| setup::need_sshd())
        .and_then(|()| super::Toolchain::find(Some(super::inventory::ARM_LINUX)));
    if let Err(error) = there {
        if required {
            return Err(error).context("the emulated device is required");
        }
        return Ok(Some(format!("{error:#}")));
    }
    let args = DeviceArgs { on: vec!["qemu".to_owned()], ..DeviceArgs::default() };
    super::run(&args).map(|()| None)
}

fn android() -> Result<()> {
    if !toolchain::has_std(ANDROID) {
        println!("not checked for phones: rustup target add {ANDROID}");
        return Ok(());
    }
    let mut cargo = workspace::cargo();
    cargo.args(["check", "--locked", "--workspace", "--exclude", "xtask", "--target", ANDROID]);
    workspace::run(&mut cargo)
}
