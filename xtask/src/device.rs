//! `cargo xtask device`: tests and the program on other machines.
//!
//! Builds for each target, sends a bundle to each device, runs its steps there, brings results back, and
//! leaves nothing on the device: see [`session`]. Only a lost connection is tried again; a failed test is
//! a result.

mod args;
mod build;
mod bundle;
mod ci;
mod drive;
mod inventory;
mod junit;
mod link;
mod log;
mod owner;
mod report;
mod results;
mod script;
mod session;
mod staging;
mod stop;
mod toolchain;
mod transport;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

pub use args::DeviceArgs;
use args::DeviceCommand;
use bundle::{Bundle, Packed};
pub use ci::run as ci;
use drive::Drive;
use inventory::{Device, Kind};
use link::Link;
use log::Log;
use results::{Found, Run};
use staging::Staging;
use toolchain::Toolchain;
use transport::Transport;

use crate::{setup, workspace};

/// Where the folders of results are, unless one is named.
const RESULTS: &str = "target/device";

/// Runs the command.
pub fn run(args: &DeviceArgs) -> Result<()> {
    match &args.command {
        Some(DeviceCommand::List { inventory }) => {
            print!("{}", inventory::table(&inventory::load(inventory.as_deref())?));
            Ok(())
        }
        Some(DeviceCommand::Report { run, against }) => show(run, against.as_deref()),
        None => run_on(args).map(drop),
    }
}

fn show(run: &Path, against: Option<&Path>) -> Result<()> {
    let now = read_run(run)?;
    print!("{}", report::markdown(&now));
    let Some(earlier) = against else { return Ok(()) };
    let (worse, text) = report::compare(&now, &read_run(earlier)?);
    print!("{text}");
    if worse.is_empty() {
        println!("\nNothing is worse beyond noise.");
        return Ok(());
    }
    bail!("worse than before:\n{}", worse.join("\n"))
}

fn read_run(path: &Path) -> Result<Run> {
    let path = if path.is_dir() { path.join("run.json") } else { path.to_owned() };
    let text = fs::read_to_string(&path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no run", path.display()))
}

/// Runs on the devices that `args` select and returns the folder of results.
fn run_on(args: &DeviceArgs) -> Result<PathBuf> {
    let all = inventory::load(args.inventory.as_deref())?;
    if args.on.is_empty() {
        bail!("say where: --on NAME_OR_LABEL\n{}", inventory::table(&all));
    }
    let devices = inventory::select(&all, &args.on)?;
    stop::install()?;
    let results = workspace::root().join(RESULTS);
    let name = name_of_run();
    let folder = args.out.clone().unwrap_or_else(|| results.join(&name));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let staging = Staging::new(&folder)?;
    let packed = devices.iter().map(|d| prepare(d, args, &staging.path));
    let packed = packed.collect::<Result<Vec<_>>>()?;
    if args.keep_bundle {
        keep(&packed, &folder)?;
    }
    let run = Run { run: name, devices: drive_all(&devices, &packed, &folder)? };
    drop(staging);
    finish(&run, &folder)?;
    Ok(folder)
}

/// Makes what is sent to `device`, or takes what was made for one like it.
fn prepare(device: &Device, args: &DeviceArgs, staging: &Path) -> Result<Packed> {
    if stop::is_asked() {
        bail!("stopped");
    }
    if device.transport == Kind::Qemu {
        setup::need_arm_emulator()?;
    }
    if let Some(folder) = &args.bundle {
        let archive = staging.join("given.tar.gz");
        return Bundle::load(folder)?.pack(folder, &archive);
    }
    let toolchain = Toolchain::find(device.target())?;
    let target = toolchain.target.as_deref().unwrap_or("host");
    let name = if device.is_emulated() { format!("{target}-emulated") } else { target.to_owned() };
    let folder = staging.join(&name);
    let archive = staging.join(format!("{name}.tar.gz"));
    if archive.exists() {
        let bytes = fs::metadata(&archive)?.len();
        return Ok(Packed { bundle: Bundle::load(&folder)?, archive, bytes });
    }
    let wanted = build::Wanted {
        model: args.model.clone(),
        benches: args.benches,
        is_emulated: device.is_emulated(),
    };
    build::bundle(&toolchain, &wanted, &folder)?.pack(&folder, &archive)
}

fn keep(packed: &[Packed], folder: &Path) -> Result<()> {
    for one in packed {
        let to = folder.join(format!("bundle-{}", one.bundle.target.replace([' ', '\''], "-")));
        fs::create_dir_all(&to)?;
        let mut tar = std::process::Command::new("tar");
        workspace::run(tar.arg("-xzf").arg(&one.archive).arg("-C").arg(&to))?;
    }
    Ok(())
}

/// Drives all devices at once.
fn drive_all(devices: &[Device], packed: &[Packed], folder: &Path) -> Result<Vec<Found>> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (device, packed) in devices.iter().zip(packed) {
            let folder = folder.join(&device.name);
            fs::create_dir_all(&folder)?;
            let log = Log::new(&folder.join("log.txt"), &device.name)?;
            let drive = move || {
                let transport = Transport::new(device);
                let grace = Duration::from_secs(device.grace);
                let link = Link { transport: &transport, log: &log, grace };
                Drive { device, packed, link, folder: &folder }.run()
            };
            threads.push(scope.spawn(drive));
        }
        let found = threads.into_iter().map(|thread| thread.join());
        found.map(|found| found.map_err(|_| anyhow::anyhow!("a thread panicked"))).collect()
    })
}

/// Writes results and says how it went.
fn finish(run: &Run, folder: &Path) -> Result<()> {
    let json = serde_json::to_string_pretty(run).context("a run is JSON")?;
    let report = report::markdown(run);
    for (name, text) in
        [("run.json", &json), ("junit.xml", &junit::xml(run)), ("report.md", &report)]
    {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("\n{report}\nAll of it: {}", folder.display());
    if stop::is_asked() {
        bail!("stopped before it was done");
    }
    let bad: Vec<&str> =
        run.devices.iter().filter(|d| !d.is_good()).map(|d| d.device.as_str()).collect();
    if !bad.is_empty() {
        bail!("not everything passed on {}", bad.join(", "));
    }
    Ok(())
}

/// When the run began, in universal time; with the process, since two may begin together.
fn name_of_run() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let (day, second) = (seconds / 86400, seconds % 86400);
    let (year, month, day) = civil(day);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let pid = std::process::id();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}.{minute:02}.{second:02}-{pid}")
}

/// Year, month and day of a count of days since 1970, in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Counted from the first of March of the year 0, leap days come last.
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_088), (2024, 12, 31));
    }
}
