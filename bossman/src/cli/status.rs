//! `bossman status`: how a run does, from its boss or its folder.

use super::fleet::until_interrupted;
use anyhow::{Context, Result};
use bossman::output;
use bossman::runs::resolve_newest;
use std::path::PathBuf;

/// The boss that is asked if nothing else is said.
const DEFAULT_HOST: &str = "127.0.0.1";
const DEFAULT_PORT: u16 = 1024;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bossman status runs/latest                                   a run of this machine
  MODEL_HOST=192.168.1.20 MODEL_TICKET=.. bossman status       the boss of another one")]
pub(crate) struct Status {
    /// The folder of a run that this user started on this machine [default: ask the boss at --host
    /// and --port]
    #[arg(conflicts_with_all = ["host", "port"])]
    run: Option<PathBuf>,
    /// Name or address of the boss's machine [default: MODEL_HOST, else 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// UDP port of the boss [default: MODEL_PORT, else 1024]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Join ticket of the boss [default: MODEL_TICKET, else this user's own; with a folder always
    /// this user's own]. The environment variable is safer than the flag.
    #[arg(long, value_name = "TICKET")]
    ticket: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(crate) fn run(self) -> Result<()> {
        let interrupted = "nothing was asked";
        let status = match &self.run {
            Some(run) => {
                let folder = resolve_newest(run)?;
                let ask = bossman::Status::of_run(&folder, self.ticket.as_deref());
                let status = until_interrupted(interrupted, ask)?;
                output::warn(&format!("run folder {}", folder.display()));
                status
            }
            None => {
                let host = self.host.or_else(|| environment("MODEL_HOST"));
                let port = match (self.port, environment("MODEL_PORT")) {
                    (Some(port), _) => port,
                    (None, Some(text)) => text.parse::<u16>().with_context(|| {
                        format!("MODEL_PORT={text}: expected a number from 0 to 65535")
                    })?,
                    (None, None) => DEFAULT_PORT,
                };
                let ticket = self.ticket.or_else(|| environment("MODEL_TICKET"));
                let host = host.as_deref().unwrap_or(DEFAULT_HOST);
                let ask = bossman::Status::ask(host, port, ticket.as_deref());
                until_interrupted(interrupted, ask)?
            }
        };
        match self.json {
            true => output::print_line(&serde_json::to_string(&status)?)?,
            false => output::print(&status.to_string())?,
        };
        Ok(())
    }
}

/// A variable of the environment, if it is set and says something.
fn environment(name: &str) -> Option<String> {
    let text = std::env::var(name).ok()?.trim().to_string();
    (!text.is_empty()).then_some(text)
}
