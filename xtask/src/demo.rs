//! `cargo xtask demo`: from a clean clone to the answer of a model that is larger than the memory it
//! may use, in one command.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::flags::DemoArgs;
use crate::{models, packs, workspace};

/// The real model that the demo shows.
const MODEL: &str = "smollm2";

/// The tiny model that needs no network, and what it can continue: it knows one book.
const TINY: &str = "fixtures/tiny-book.gguf";

/// What the program may hold in all: less than the model's 94 MiB.
const BUDGET: &str = "80MiB";

/// Tokens of prompt and answer. Their keys and values are a part of the budget.
const CONTEXT: &str = "256";

/// Runs the command.
pub fn run(args: &DemoArgs) -> Result<()> {
    let (model, is_tiny) = choose(args.offline);
    println!("Building leanstream…");
    let program = workspace::release_binary("ls-cli", "leanstream")?;
    let default = if is_tiny { "When a value goes out of scope," } else { "Why is the sky blue?" };
    let prompt = args.prompt.as_deref().unwrap_or(default);
    let mut command = Command::new(&program);
    // The tiny model is smaller than the program: there is nothing to stream.
    let shown = if is_tiny { model.clone() } else { packs::pack(&program, &model, "auto")?.path };
    command.arg("run").arg(&shown);
    let is_sparse = shown.with_extension("lspred").exists();
    if !is_tiny {
        command.args(["--budget", BUDGET, "-c", CONTEXT, "--chat"]);
    }
    if is_sparse {
        command.args(["--mode", "sparse", "--keep", "auto:5"]);
    }
    command.args(["--prompt", prompt, "--temp", "0", "--repeat-penalty", "1.1", "--verbose"]);
    command.args(["-n", &args.n.to_string()]);
    println!("\n$ {}\n", workspace::shown(&command));
    workspace::run(&mut command)?;
    next_steps(&program, &shown, is_tiny, is_sparse);
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

fn next_steps(program: &Path, shown: &Path, is_tiny: bool, is_sparse: bool) {
    let (program, shown) = (program.display(), shown.display());
    if is_tiny {
        println!("\nThat was {shown}, computed on this machine's CPU.");
        println!("It learnt English from one book on Rust, so do not trust a word of it.");
        println!("Next, with a network: cargo xtask models smollm2 && cargo xtask demo");
    } else {
        println!(
            "\nThat was a model of 94 MiB in {BUDGET} of memory, program included: what did not fit \
             was read from the disk again for each token."
        );
        match is_sparse {
            true => println!(
                "Its predictors were there, so each token computed only the neurons that matter most."
            ),
            false => println!(
                "Next, predictors of the neurons that matter, in minutes: {program} train {shown} -f TEXT"
            ),
        }
        println!("Next, a chat: {program} run {shown} --budget {BUDGET} -c {CONTEXT}");
    }
}
