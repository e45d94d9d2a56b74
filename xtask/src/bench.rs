//! `cargo xtask bench`: what real models reach, alone or beside llama.cpp.
//!
//! Beside the peer, the two engines take turns on the same model with the same threads, so that
//! whatever else the machine does meets both.

mod ablation;
mod budget;
mod caches;
mod columns;
mod mean;
mod peer_run;
mod plot;
mod run;
mod speed;
mod table;

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cap::{self, Home};
use crate::flags::BenchArgs;
use crate::{models, peer, workspace};

/// What every kind of measurement needs.
#[derive(Debug)]
struct Setup {
    models: Vec<PathBuf>,
    /// The `leanstream` program.
    program: PathBuf,
    /// A Python that has the peer, if that is to be measured.
    python: Option<PathBuf>,
    threads: u32,
    turns: u32,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<()> {
    let setup = Setup::new(args)?;
    if let Some(load) = load_average().filter(|load| *load > 0.5) {
        eprintln!("This machine is busy (load {load:.1}): speeds will be low and uncertain.");
    }
    match (args.columns, args.caches, args.budget.is_empty()) {
        _ if args.ablation => ablation::run(&setup, args),
        (true, ..) => columns::run(&setup, args),
        (_, true, _) => caches::run(&setup, args),
        (.., false) => budget::run(&setup, args),
        (.., true) => speed::run(&setup, args),
    }
}

impl Setup {
    fn new(args: &BenchArgs) -> Result<Self> {
        let models = match args.models.as_slice() {
            [] => vec![models::fetch("smollm2")?],
            names => names.iter().map(|name| model_path(name)).collect::<Result<_>>()?,
        };
        let threads = match args.threads {
            Some(threads) => threads,
            None => u32::try_from(std::thread::available_parallelism()?.get())?,
        };
        Ok(Self {
            models,
            python: if args.peer { Some(peer::python()?) } else { None },
            program: workspace::release_binary("ls-cli", "leanstream")?,
            threads,
            turns: args.turns.max(1),
        })
    }

    /// Where memory can be limited; `None`, said aloud, where it cannot be and no one needs it.
    fn memory_limits(&self) -> Result<Option<Home>> {
        let system = Path::new("/");
        let usable = Home::find(system).and_then(|home| {
            home.sweep(system);
            // Whether one may be made is known once one was made.
            cap::Cgroup::create(&home, 1 << 30).map(|_| home)
        });
        match usable {
            Ok(home) => Ok(Some(home)),
            Err(error) if self.python.is_some() => {
                Err(error.context("the peer has no budget of its own: it needs a memory limit"))
            }
            Err(error) => {
                eprintln!("Ours keeps its budget without a memory limit around it: {error:#}");
                Ok(None)
            }
        }
    }
}

/// Programs that wanted to run in the last minute, where the system says so.
fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// A path as it is, or the file of a model that can be fetched.
fn model_path(name: &str) -> Result<PathBuf> {
    let path = PathBuf::from(name);
    if path.exists() { Ok(path) } else { models::fetch(name) }
}

fn name_of(model: &Path) -> String {
    model.file_name().unwrap_or(model.as_os_str()).to_string_lossy().into_owned()
}
