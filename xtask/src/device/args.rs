//! The command line of `cargo xtask device`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `device`.
#[derive(Debug, Default, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DeviceArgs {
    /// Look at devices or results instead of running.
    #[command(subcommand)]
    pub command: Option<DeviceCommand>,

    /// Devices to run on, by name or label.
    #[arg(long, value_name = "NAME_OR_LABEL", value_delimiter = ',')]
    pub on: Vec<String>,

    /// The inventory [default: devices.toml in the workspace's root, if it is there].
    #[arg(long, value_name = "FILE")]
    pub inventory: Option<PathBuf>,

    /// Send a real model too, by the names of `models --list`, and run it.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,

    /// Measure kernels as well: the benches of the crates.
    #[arg(long)]
    pub benches: bool,

    /// Build nothing: use a bundle that an earlier run kept.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["model", "benches"])]
    pub bundle: Option<PathBuf>,

    /// Keep what is sent, for --bundle, as bundle-TARGET in the folder of results.
    #[arg(long)]
    pub keep_bundle: bool,

    /// Folder of results [default: a new one in target/device].
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

/// What else `device` can do.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// List the devices of the inventory.
    List {
        /// The inventory [default: devices.toml in the workspace's root, if it is there].
        #[arg(long, value_name = "FILE")]
        inventory: Option<PathBuf>,
    },
    /// Render the results of a run as a Markdown table.
    ///
    /// Beside an earlier run, what got worse beyond noise is named, and the exit code is 1.
    Report {
        /// The run.json of a run, or the folder that it lies in.
        run: PathBuf,
        /// The run to compare with.
        #[arg(long, value_name = "RUN")]
        against: Option<PathBuf>,
    },
}
