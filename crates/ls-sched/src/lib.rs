//! Decides what is ranked, read, computed and kept, and when, while a model is streamed.
//!
//! A model whose weights do not fit into memory is computed layer by layer, from *chunks* that are read
//! from flash. Of a layer a token computes all chunks, or those that a predictor ranks best. The
//! [`Controller`] runs through the layers:
//!
//! 1. *Speculate.* When layer n is entered, layer n + 1 is ranked; what of its best chunks is not in
//!    memory is read, the best for its time first.
//! 2. *Compute in stages.* Layer n begins with what is there, in stages of its best chunks, while the
//!    rest comes.
//! 3. *Refine.* After some stages layer n + 1 is ranked anew, since more is known. Reads that did not
//!    begin are re-ordered or taken back. After how many is said by a [`Table`], which
//!    [`solve`] makes from what things cost ([`Profile`]).
//! 4. *Keep.* The same scores, and their history, say which chunks in memory have to go
//!    ([`Retention`]).
//!
//! It is pure: it is told what happened and when ([`Event`]) and says what to do ([`Command`]).
//! It knows no clock, thread, file, tensor or predictor. [`sim`] plays the same state machine on
//! made-up machines.
//!
//! ```
//! use ls_sched::{Command, Config, Controller, Curve, Event, Layout, Mode, Policy};
//!
//! // Three layers of 100 chunks of 16 KiB, 40 of which are computed; memory for a third.
//! let layout = Layout::even(3, 100, 16 << 10, 0.4);
//! let curve = Curve::line(17_000.0, 320.0);
//! let config = Config::new(Mode::Sparse, Policy::Fixed(2), 100 * (16 << 10), curve);
//! let mut controller = Controller::new(layout, config)?;
//!
//! let (mut now, mut n_computed) = (0, 0);
//! controller.handle(Event::TokenBegun, now)?;
//! for layer in 0..3 {
//!     // Here attention is computed.
//!     now += 1_000;
//!     controller.handle(Event::LayerEntered { layer }, now)?;
//!     while let Some(command) = controller.next_command() {
//!         match command {
//!             Command::Rank { layer, .. } => {
//!                 let scores: Vec<f32> = (0..100).map(|i| (i * 37 % 100) as f32).collect();
//!                 controller.handle(Event::Scores { layer, scores: &scores }, now)?;
//!             }
//!             Command::Submit { read } => {
//!                 let read = controller.read(read).expect("it was just submitted");
//!                 for chunk in read.chunks() {
//!                     controller.handle(Event::Arrived(chunk), now)?;
//!                 }
//!             }
//!             Command::RunStage { stage } => {
//!                 let chunks = controller.stage(stage).expect("it runs").chunks;
//!                 n_computed += chunks.len();
//!                 controller.handle(Event::StageDone { stage }, now)?;
//!             }
//!             // `Evict` frees the frame of a chunk, `Cancel` takes back a read, and so on.
//!             _ => {}
//!         }
//!     }
//! }
//! assert_eq!(n_computed, 3 * 40);
//! assert_eq!(controller.stats().tokens, 1);
//! # Ok::<(), ls_sched::SchedError>(())
//! ```
//!
//! # Reads
//! On most disks a read costs as much as 50 to 80 KiB beyond its bytes, and a chunk has 12 to 24: then
//! reading scattered chunks one by one is slower than reading everything. So a plan's reads are
//! stretches of a file, through gaps where that is cheaper than another read ([`Curve`]). With a
//! [price](Config::price), choosing knows what chunks cost: those in memory nothing, neighbours of
//! what is read anyway little, lone ones much ([`Chooser`]).
//!
//! # What holds
//! - No chunk is computed twice in a visit of its layer. In exact mode each is computed once; in sparse
//!   mode each that was chosen last is computed once, or dropped, which is counted and bounded.
//! - A chunk is in memory from the start of its stage to the end, and not held by it any longer.
//! - No more frames are occupied than the budget has, except by what was in use when it was lowered.
//! - In whatever order things happen, a token ends. A read that fails or never ends is repeated,
//!   dropped, or ends the token with [`Command::Abort`]; the next token begins anew. What the
//!   caller owes is that stages and rankings end, and time passes ([`Controller::next_deadline`]).
//! - An event that cannot have happened is an error and changes nothing.
//! - The steady state does not allocate. A chunk takes some six bytes, beside the plans of the layers
//!   that are under way.

mod bytes;
mod choose;
mod command;
mod config;
mod controller;
mod costs;
mod curve;
mod error;
mod event;
mod frames;
mod interval;
mod layout;
mod plan;
mod retention;
pub mod sim;
mod solve;
mod stats;
mod worth;

pub use choose::{Chooser, Place, Price, gains};
pub use command::{Basis, Cause, Command, Read, ReadId, Stage, StageId};
pub use config::{Config, Count, Fidelity, Keep, Mode, Policy, UnknownPolicy};
pub use controller::Controller;
pub use curve::Curve;
pub use error::SchedError;
pub use event::Event;
pub use interval::{STEPS, Table};
pub use layout::{Chunk, Layer, Layout, MAX_CHUNKS};
pub use retention::Retention;
pub use solve::{Profile, solve};
pub use stats::Stats;
pub use worth::Worth;
