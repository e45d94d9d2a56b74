//! What the machine has to have: installed where we may, otherwise told how.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::workspace;

/// Makes sure that `python3` with pip is there.
pub fn need_pip() -> Result<()> {
    need_modules(&["pip"])
}

/// Makes sure that `python3` can make virtual environments with pip in them.
pub fn need_venv() -> Result<()> {
    need_modules(&["pip", "venv", "ensurepip"])
}

fn need_modules(modules: &[&str]) -> Result<()> {
    let has = |module: &&str| works("python3", &["-c", &format!("import {module}")]);
    if modules.iter().all(has) {
        return Ok(());
    }
    install("Python 3 with pip and venv", &["python3", "python3-pip", "python3-venv"])
}

/// Whether a C++ compiler is there.
pub fn has_cxx() -> bool {
    works("c++", &["--version"])
}

/// Makes sure that a C++ compiler is there.
pub fn need_cxx() -> Result<()> {
    if has_cxx() {
        return Ok(());
    }
    install("a C++ compiler", &["g++"])
}

/// Makes sure that the compiler and the validator of shaders are there.
pub fn need_shader_tools() -> Result<()> {
    if works("glslangValidator", &["--version"]) && works("spirv-val", &["--version"]) {
        return Ok(());
    }
    install("a compiler and a validator of shaders", &["glslang-tools", "spirv-tools"])
}

/// Makes sure that Vulkan is there: the loader, a driver that computes on the processor, and the
/// layers that check calls.
pub fn need_vulkan() -> Result<()> {
    let folders = ["/usr/share/vulkan", "/usr/local/share/vulkan", "/etc/vulkan"];
    let any = |below: &str, part: &str| {
        folders.iter().any(|folder| {
            let files = std::fs::read_dir(Path::new(folder).join(below)).into_iter().flatten();
            files.flatten().any(|file| file.file_name().to_string_lossy().contains(part))
        })
    };
    let loader = workspace::output(Command::new("/sbin/ldconfig").arg("-p"))
        .is_ok_and(|list| list.contains("libvulkan.so.1"));
    if loader && any("icd.d", "lvp") && any("explicit_layer.d", "khronos_validation") {
        return Ok(());
    }
    install(
        "Vulkan with a driver for processors and validation layers",
        &["libvulkan1", "mesa-vulkan-drivers", "vulkan-validationlayers"],
    )
}

/// Makes sure that the emulator of 64-bit ARM is there.
pub fn need_arm_emulator() -> Result<()> {
    if has_arm_emulator() {
        return Ok(());
    }
    install("the emulator of 64-bit ARM", &["qemu-user-static"])
}

/// Whether the emulator of 64-bit ARM is there.
pub fn has_arm_emulator() -> bool {
    works("qemu-aarch64-static", &["--version"])
}

/// Makes sure that a linker for 64-bit ARM Linux is there.
pub fn need_arm_linker() -> Result<()> {
    if works("aarch64-linux-gnu-gcc", &["--version"]) {
        return Ok(());
    }
    install("a linker for 64-bit ARM", &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"])
}

/// Makes sure that a C++ compiler for 64-bit ARM Linux is there.
pub fn need_arm_cxx() -> Result<()> {
    if works("aarch64-linux-gnu-g++", &["--version"]) {
        return Ok(());
    }
    install("a C++ compiler for 64-bit ARM", &["g++-aarch64-linux-gnu"])
}

/// Makes sure that the distribution's Rust compiler for 64-bit ARM is there.
pub fn need_arm_compiler() -> Result<()> {
    need_arm_linker()?;
    let std = "/usr/lib/rustlib/aarch64-unknown-linux-gnu";
    if works("/usr/bin/rustc", &["--version"]) && Path::new(std).exists() {
        return Ok(());
    }
    if is_root() && Path::new("/etc/debian_version").exists() {
        workspace::run(Command::new("dpkg").args(["--add-architecture", "arm64"]))?;
    }
    install(
        "a Rust compiler for 64-bit ARM (after: dpkg --add-architecture arm64)",
        &["rustc-web", "libstd-rust-web-dev:arm64"],
    )
}

/// Makes sure that the server of secure shells is there.
pub fn need_sshd() -> Result<()> {
    if Path::new("/usr/sbin/sshd").exists() || works("sshd", &["-V"]) {
        return Ok(());
    }
    install("the server of secure shells, which tests of devices start", &["openssh-server"])
}

/// Adds a target to the toolchain where rustup is and reaches its server; says whether it did.
pub fn rustup_target(target: &str) -> bool {
    // A server that is out of reach may not answer at all.
    works("timeout", &["300", "rustup", "target", "add", target])
}

fn works(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Installs Debian packages when that is possible, or says what to type.
fn install(what: &str, packages: &[&str]) -> Result<()> {
    let debian = Path::new("/etc/debian_version").exists();
    if !debian {
        bail!("{what} is missing: install it with your system's package manager");
    }
    if !is_root() {
        let list = packages.join(" ");
        bail!("{what} is missing: sudo apt-get update && sudo apt-get install {list}");
    }
    println!("Installing {what}…");
    workspace::run(Command::new("apt-get").args(["-qq", "update"]))?;
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command.args(["-qq", "install", "--no-install-recommends"]).args(packages);
    workspace::run(&mut command)
}

fn is_root() -> bool {
    let mut command = Command::new("id");
    command.arg("-u");
    workspace::output(&mut command).is_ok_and(|uid| uid.trim() == "0")
}
