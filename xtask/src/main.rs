//! The build driver: every task of the repository is a command of `cargo xtask`.

mod fixtures;
mod flags;
mod peer;
mod setup;
mod workspace;

use std::process::ExitCode;

use clap::Parser;
use flags::{Command, Flags};

fn main() -> ExitCode {
    let result = match Flags::parse().command {
        Command::Fixtures(args) => fixtures::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
