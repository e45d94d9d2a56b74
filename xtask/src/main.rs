//! The build driver: every task of the repository is a command of `cargo xtask`.

mod bench;
mod cap;
mod ci;
mod demo;
mod device;
mod fixtures;
mod flags;
mod loom;
mod models;
mod packs;
mod peer;
mod setup;
mod shaders;
mod size;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::Parser;
use flags::{Command, Flags};

fn main() -> ExitCode {
    let result = match Flags::parse().command {
        Command::Ci(args) => ci::run(&args),
        Command::Tidy => tidy::run(),
        Command::Fixtures(args) => fixtures::run(&args),
        Command::Models(args) => models::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Loom => loom::run(),
        Command::Shaders(args) => shaders::run(&args),
        Command::Device(args) => device::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
