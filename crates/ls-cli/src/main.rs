//! The `leanstream` program: runs, measures and explains language models.

mod args;
mod choose;
mod cmd;
mod device;
mod disk;
mod folder;
mod interrupt;
mod output;
mod refine;
#[cfg(unix)]
mod sigbus;
mod size;
mod streaming;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    #[cfg(unix)]
    sigbus::install();
    let result = match Cli::parse().command {
        Command::Inspect(args) => cmd::inspect::run(&args),
        Command::Pack(args) => cmd::pack::run(&args),
        Command::Run(args) => cmd::run::run(&args),
        Command::Perplexity(args) => cmd::perplexity::run(&args),
        Command::Calibrate(args) => cmd::calibrate::run(&args),
        Command::Train(args) => cmd::train::run(&args),
        Command::Bench(args) => cmd::bench::run(&args),
        Command::Doctor(args) => cmd::doctor::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<interrupt::Interrupted>() => {
            output::note(error);
            ExitCode::from(interrupt::EXIT_CODE)
        }
        Err(error) => {
            output::note(format_args!("error: {}", output::sentence(&error)));
            ExitCode::from(if error.is::<output::UsageError>() { 2 } else { 1 })
        }
    }
}
