//! `cargo xtask demo`: from a clean clone to a model's answer in one command.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::flags::DemoArgs;
use crate::{models, workspace};

/// The real model that the demo shows.
const MODEL: &str = "smollm2";

/// The tiny model that needs no network, and what it can continue: it knows one book.
const TINY: &str = "fixtures/tiny-book.gguf";

/// Runs the command.
pub fn run(args: &DemoArgs) -> Result<()> {
    let (model, is_tiny) = choose(args.offline);
    println!("Building leanstream…");
    let program = workspace::release_binary("ls-cli", "leanstream")?;
    let default = if is_tiny { "When a value goes out of scope," } else { "Why is the sky blue?" };
    let prompt = args.prompt.as_deref().unwrap_or(default);
    let mut command = Command::new(&program);
    command.arg("run").arg(&model);
    if !is_tiny {
        command.arg("--chat");
    }
    command.args(["--prompt", prompt, "--temp", "0", "--repeat-penalty", "1.1", "--verbose"]);
    command.args(["-n", &args.n.to_string()]);
    println!("\n$ {}\n", workspace::shown(&command));
    workspace::run(&mut command)?;
    next_steps(&program, &model, is_tiny);
    Ok(())
}

/// The model to show, and whether it is the tiny one.
fn choose(offline: bool) -> (PathBuf, bool) {
    let tiny = workspace::root().join(TINY);
    if offline && !models::is_here(MODEL) {
        println!("Offline: using the tiny model {TINY}.");
        return (tiny, true);
    }
    match models::fetch(MODEL) {
        Ok(path) => (path, false),
        Err(error) => {
            println!("{error:#}\nUsing the tiny model {TINY} instead.");
            (tiny, true)
        }
    }
}

fn next_steps(program: &Path, model: &Path, is_tiny: bool) {
    let (program, model) = (program.display(), model.display());
    println!("\nThat was {model}, computed on this machine's CPU.");
    if is_tiny {
        println!("It learnt English from one book on Rust, so do not trust a word of it.");
        println!("Next, with a network: cargo xtask models smollm2 && cargo xtask demo");
    } else {
        println!("Next, a chat: {program} run {model}");
    }
    println!("Speed:        cargo xtask bench");
}
