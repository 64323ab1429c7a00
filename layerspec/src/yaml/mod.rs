//! YAML with locations: every node knows its line and column, so that every error can.
//!
//! [`read_file`] fetches the text (bounded), [`parse`] makes a tree of [`Node`]s (bounded in
//! depth and number), and nodes are read as typed values by [`Reader`]s. Each step's error is a
//! [`crate::Diagnostic`]; [`crate::Diagnostic::in_file`] turns it into the one-line error that
//! users see.
//!
//! ```
//! use layerspec::yaml::{self, NUMBER, SIZE};
//!
//! let text = "batch_size: 32\nloss: {CrossEntropyLoss: {label_smoothing: 0.1}}\n";
//! let root = yaml::parse(text)?;
//! let run = root.mapping("the run file", "key", &["batch_size", "epochs", "loss"])?;
//! let batch_size = run.required("batch_size", &SIZE)?;
//! let epochs = run.optional("epochs", &SIZE)?.unwrap_or(1);
//!
//! let loss = run.need("loss")?.choice("`loss`", "a loss")?;
//! let smoothing = match loss.name {
//!     "CrossEntropyLoss" => {
//!         loss.arguments(&["label_smoothing"])?.optional("label_smoothing", &NUMBER)?
//!     }
//!     _ => return Err(loss.unknown("loss", &["CrossEntropyLoss"])),
//! };
//! assert_eq!((batch_size, epochs, smoothing), (32, 1, Some(0.1)));
//!
//! let typo = yaml::parse("batchsize: 32")?;
//! let error = typo.mapping("the run file", "key", &["batch_size"]).unwrap_err();
//! assert_eq!(
//!     error.in_file("run.yaml").to_string(),
//!     "run.yaml:1:1: unknown key `batchsize`; did you mean `batch_size`?"
//! );
//! # Ok::<(), layerspec::Diagnostic>(())
//! ```

mod file;
mod node;
mod parse;
mod read;
mod readers;
mod scalar;

pub use file::{read_file, MAX_BYTES};
pub use node::{Entry, Key, Kind, Node};
pub use parse::{parse, MAX_DEPTH, MAX_NODES};
pub use read::{Choice, Mapping, Reader};
pub use readers::*;
