//! `leanstream doctor`: what this machine offers.

mod disk;
#[cfg_attr(
    not(all(feature = "vulkan", not(any(target_feature = "crt-static", target_env = "musl")))),
    path = "doctor/no_gpu.rs"
)]
mod gpu;
mod sample;

use std::path::Path;
use std::process::ExitCode;

use ls_cpu::Isa;
use ls_engine::system::{self, Cores, Memory};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::interrupt::{self, Interrupted};
use crate::output;
use disk::Disk;
use gpu::Vulkan;

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    os: &'static str,
    arch: &'static str,
    cores: Cores,
    simd: Vec<&'static str>,
    /// The instruction set that compute code has chosen.
    kernels: &'static str,
    memory: Memory,
    page_bytes: Option<usize>,
    glibc: Option<String>,
    /// `None`: there is no place to make a file in.
    disk: Option<Disk>,
    vulkan: Vulkan,
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    interrupt::install()?;
    let spinner = output::spinner("measuring the disk".to_owned());
    let disk = match &args.disk {
        Some(path) => Some(Disk::examine(path, args.fresh)),
        None => Disk::examine(Path::new("."), args.fresh).ok().map(Ok),
    };
    spinner.finish_and_clear();
    if interrupt::take() {
        return Err(Interrupted("interrupted".into()).into());
    }
    let spinner = output::spinner("trying out GPUs".to_owned());
    let vulkan = Vulkan::examine(args.gpu.clone());
    spinner.finish_and_clear();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        os: std::env::consts::OS,
        arch: std::env::consts::ARCH,
        cores: system::cores(),
        simd: simd_features(),
        kernels: Isa::detect().name(),
        memory: system::memory(),
        page_bytes: system::page_size(),
        glibc: system::glibc_version(),
        disk: disk.transpose()?,
        vulkan,
    };
    if args.json {
        output::json(&report)?;
    } else {
        output::stdout(&text(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(report: &Report) -> String {
    let mut rows = vec![
        row("leanstream", report.version.to_string()),
        row("system", system_line(report)),
        row("cores", cores_line(&report.cores)),
        row("simd", if report.simd.is_empty() { "none".into() } else { report.simd.join(" ") }),
        row("kernels", report.kernels.to_string()),
        row("memory", memory_line(&report.memory)),
    ];
    rows.extend(report.memory.cgroup_limits.iter().map(|limit| {
        let (all, used) = (output::bytes(limit.limit_bytes), output::bytes(limit.used_bytes));
        row("memory limit", format!("{all}, {used} used, by {}", limit.path.display()))
    }));
    if report.memory.cgroup_limits.is_empty() {
        rows.push(row("memory limit", "none set by a control group".into()));
    }
    match &report.disk {
        Some(disk) => rows.extend(disk.rows().into_iter().map(|(name, value)| row(name, value))),
        None => rows.push(row("disk", "no file can be made in this folder; see --disk".into())),
    }
    rows.extend(report.vulkan.rows().into_iter().map(|(name, value)| row(name, value)));
    let speeds = report.disk.as_ref().and_then(Disk::table);
    let speeds = speeds.map(|rows| format!("\n{}", output::table(&rows, &[0, 1, 2])));
    output::table(&rows, &[]) + &speeds.unwrap_or_default()
}

fn row(name: &str, value: String) -> Vec<String> {
    vec![name.to_string(), value]
}

fn system_line(report: &Report) -> String {
    let page = report.page_bytes.map_or("unknown pages".into(), |n| format!("{n}-byte pages"));
    let libc =
        report.glibc.as_ref().map_or("not glibc".into(), |version| format!("glibc {version}"));
    format!("{} {}, {page}, {libc}", report.os, report.arch)
}

fn cores_line(cores: &Cores) -> String {
    let affinity = cores.affinity.map_or("unknown".into(), |n| n.to_string());
    let quota = cores.cgroup_quota.map_or("none".into(), |quota| format!("{quota:.2}"));
    format!("{} usable (affinity {affinity}, control group quota {quota})", cores.usable)
}

fn memory_line(memory: &Memory) -> String {
    let size = |bytes: Option<u64>| bytes.map_or("unknown".into(), output::bytes);
    format!(
        "{} usable now ({} installed, {} available)",
        size(memory.available_bytes),
        size(memory.total_bytes),
        size(memory.mem_available_bytes)
    )
}

/// The instructions that compute code can make use of, as the processor and system report them.
#[cfg(target_arch = "x86_64")]
fn simd_features() -> Vec<&'static str> {
    use std::arch::is_x86_feature_detected as has;
    let features = [
        ("sse4.1", has!("sse4.1")),
        ("avx", has!("avx")),
        ("f16c", has!("f16c")),
        ("fma", has!("fma")),
        ("avx2", has!("avx2")),
        ("avxvnni", has!("avxvnni")),
        ("avx512f", has!("avx512f")),
        ("avx512bw", has!("avx512bw")),
        ("avx512vl", has!("avx512vl")),
        ("avx512vnni", has!("avx512vnni")),
        ("avx512bf16", has!("avx512bf16")),
    ];
    features.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

/// The instructions that compute code can make use of, as the processor and system report them.
#[cfg(target_arch = "aarch64")]
fn simd_features() -> Vec<&'static str> {
    use std::arch::is_aarch64_feature_detected as has;
    let features = [
        ("neon", has!("neon")),
        ("fp16", has!("fp16")),
        ("dotprod", has!("dotprod")),
        ("i8mm", has!("i8mm")),
        ("bf16", has!("bf16")),
        ("sve", has!("sve")),
    ];
    features.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

/// The instructions that compute code can make use of, as the processor and system report them.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn simd_features() -> Vec<&'static str> {
    Vec::new()
}
