//! Waits for workers, at first and after a loss.

use crate::output::{self, printable};
use crate::session::boss::Builder;
use crate::workers::local_processes::{LocalWorkers, WorkerFlags};
use crate::{BossMan, BossManError};
use link::{Identity, LinkError, Listener, ListenerEvent, Ticket, Transport};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

/// The default port.
const DEFAULT_PORT: u16 = 1024;

/// The most rejected callers to show.
const MAX_REJECTIONS_SHOWN: u32 = 10;

/// The most characters of a line, which may hold text of workers and a path.
const MAX_LINE: usize = 5000;

/// The time to wait for a spare once all remaining workers have joined again. A spare worker asks
/// for a place every second.
const SPARE_TIMEOUT: Duration = Duration::from_millis(1500);
/// The time after which a missing worker counts as lost, too. A worker finishes its computation
/// before it joins again.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(15);
/// The time within which a run that has ended frees its port.
const PORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The workers to wait for after a loss.
pub(crate) struct RejoinWait {
    /// The number of workers that may remain.
    survivors: usize,
    /// Whether the run can continue with 0, 1, 2, ... workers.
    fits: Vec<bool>,
}

impl RejoinWait {
    /// The wait of a run from `builder` that has at most `workers` workers, of which `left` remain.
    pub(crate) fn new(builder: &Builder, workers: usize, survivors: usize) -> Self {
        let fits = |workers| workers > 0 && builder.check(workers).is_ok();
        RejoinWait { survivors, fits: (0..=workers).map(fits).collect() }
    }

    /// The largest number of the workers `here` with which the run can continue.
    fn most_usable(&self, here: usize) -> Option<usize> {
        (1..=here).rev().find(|workers| self.fits.get(*workers) == Some(&true))
    }
}

/// The address of the boss and the workers it waits for.
#[derive(Debug, Clone)]
pub struct Host {
    workers: usize,
    local: usize,
    threads: Option<usize>,
    port: Option<u16>,
    transport: Transport,
    allow_torchscript: bool,
    data: Option<PathBuf>,
    quiet: bool,
    on_stderr: bool,
    open_to_joins: bool,
}

/// Workers that have joined.
pub struct Workers {
    pub(crate) listener: Listener,
    pub(crate) local: Option<LocalWorkers>,
    pub(crate) runtime: Runtime,
    pub(crate) count: usize,
    pub(crate) quiet: bool,
    /// The settings of the wait, for a wait after a loss.
    pub(crate) host: Host,
}

impl Workers {
    /// The UDP port on which they joined.
    pub(crate) fn port(&self) -> u16 {
        self.listener.address().port()
    }
}

impl BossMan {
    /// Listens on `MODEL_PORT` (default 1024) and waits for `workers` workers, printing for each
    /// missing one the line to paste on its machine.
    ///
    /// # Errors
    /// The port is in use, or the boss's key cannot be read or made.
    pub async fn setup_host(workers: usize) -> Result<Workers, BossManError> {
        Host::new(workers).wait().await
    }

    /// Starts `workers` worker processes on this machine and waits for them. They always end with
    /// this process.
    ///
    /// # Errors
    /// The worker program is not found, or ends before it joined.
    pub async fn setup_local(workers: usize) -> Result<Workers, BossManError> {
        Host::new(workers).local(workers).wait().await
    }
}

impl Host {
    /// Waits for `workers` workers.
    pub fn new(workers: usize) -> Self {
        Host {
            workers,
            local: 0,
            threads: None,
            port: None,
            transport: Transport::default(),
            allow_torchscript: false,
            data: None,
            quiet: false,
            on_stderr: false,
            open_to_joins: false,
        }
    }

    /// Sets how many of the workers to start on this machine.
    #[must_use]
    pub fn local(mut self, local: usize) -> Self {
        self.local = local;
        self
    }

    /// Sets the compute threads of each local worker. By default the workers share the cores
    /// evenly. Some sums of libtorch, for example in normalisation layers, depend on it in the last
    /// bit.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets how tensors travel between processes of one machine. The default is shared memory.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Sets whether local workers run TorchScript layers, which are programs. The default is false.
    /// Other workers have a flag for it.
    #[must_use]
    pub fn allow_torchscript(mut self, allow: bool) -> Self {
        self.allow_torchscript = allow;
        self
    }

    /// Sets the folder from which local workers may read data. By default they read none. Other
    /// workers have a flag for it.
    #[must_use]
    pub fn data(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data = Some(folder.into());
        self
    }

    /// Sets the UDP port, instead of `MODEL_PORT`. 0 is any free port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Prints on standard error, to keep standard output for results.
    #[must_use]
    pub fn on_stderr(mut self, on_stderr: bool) -> Self {
        self.on_stderr = on_stderr;
        self
    }

    /// Sets whether workers may join after the run has begun ([`BossMan::open_pool`]). The boss
    /// then prints how, and accepts workers from other machines.
    #[must_use]
    pub fn open_to_joins(mut self, open: bool) -> Self {
        self.open_to_joins = open;
        self
    }

    /// Prints nothing.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Listens and waits until every worker is there.
    ///
    /// # Errors
    /// As for [`BossMan::setup_host`] and [`BossMan::setup_local`].
    pub async fn wait(self) -> Result<Workers, BossManError> {
        self.wait_for(None).await
    }

    /// Waits again after a loss. Starts local workers afresh. Waits for the remaining other
    /// workers, and briefly for spares. Fewer workers than before may suffice.
    pub(crate) async fn wait_for_rejoin(self, again: RejoinWait) -> Result<Workers, BossManError> {
        self.wait_for(Some(again)).await
    }

    /// Whether the boss starts workers itself.
    pub(crate) fn starts_workers(&self) -> bool {
        self.local > 0
    }

    /// The number of workers after the loss of one of `here`. Local workers are started afresh.
    pub(crate) fn survivors_of(&self, here: usize) -> usize {
        self.local + here.saturating_sub(self.local).saturating_sub(1)
    }

    /// The lines that tell the user how other machines join.
    fn invitation(&self, port: u16, ticket: &Ticket) -> Vec<String> {
        let host = link::own_address().map_or("<this machine's address>".into(), |ip| ip.to_string());
        let missing = self.workers - self.local;
        let wait = match missing {
            0 => format!("listening on port {port}; to join or leave at any moment, on each machine run"),
            _ if self.open_to_joins => format!(
                "waiting for {missing} worker(s) on port {port}, and for more at any moment; on each machine run"
            ),
            _ => format!("waiting for {missing} worker(s) on port {port}; on each machine run"),
        };
        let line = format!("  MODEL_HOST={host} MODEL_PORT={port} MODEL_TICKET={ticket} target/release/worker");
        let Some(here) = &self.data else { return vec![wait, line] };
        let here = if here.as_os_str().is_empty() { "this folder".into() } else { here.display().to_string() };
        vec![wait, format!("{line} --data FOLDER"), format!("  where FOLDER holds there what {here} holds here")]
    }

    async fn wait_for(self, again: Option<RejoinWait>) -> Result<Workers, BossManError> {
        if self.workers == 0 || self.workers > usize::from(u16::MAX) || self.local > self.workers {
            let message = format!("{} workers with {} local ones make no run", self.workers, self.local);
            return Err(BossManError::Usage(message));
        }
        let identity = Identity::load_or_create()?;
        let all_local = self.local == self.workers;
        let address = self.address(all_local && !self.open_to_joins)?;
        let mut listener = self.listener(&identity, address).await?.transport(self.transport);
        let listening = listener.address();
        let dial = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), listening.port());
        let mut local = match self.local {
            0 => None,
            count => {
                let flags = WorkerFlags {
                    threads: self.threads,
                    transport: self.transport,
                    allow_torchscript: self.allow_torchscript,
                    data: self.data.clone(),
                };
                Some(LocalWorkers::start(count, &flags, dial, identity.ticket())?)
            }
        };
        let say = |text: String| {
            if self.on_stderr && !self.quiet {
                output::warn(&printable(&text, MAX_LINE));
            } else if !self.quiet {
                output::print_progress(&printable(&text, MAX_LINE));
            }
        };
        if again.is_none() && (!all_local || self.open_to_joins) {
            self.invitation(listening.port(), identity.ticket()).into_iter().for_each(say);
        }
        let (mut rejections, mut asked) = (0, false);
        let mut count = self.workers;
        let (began, mut last_came, mut here_local) = (Instant::now(), Instant::now(), 0);
        while listener.missing() > 0 {
            let here = self.workers - listener.missing();
            let mut next_check = None;
            // A local worker that does not join ends, which the wait below notices.
            if let Some(again) = again.as_ref().filter(|_| here_local == self.local) {
                let until = if here >= again.survivors { last_came + SPARE_TIMEOUT } else { began + REJOIN_TIMEOUT };
                match again.most_usable(here).filter(|_| listener.is_contiguous()) {
                    _ if Instant::now() < until => next_check = Some(until),
                    Some(enough) => {
                        count = enough;
                        break;
                    }
                    None if !asked && listener.is_contiguous() => {
                        asked = true;
                        let all = self.workers;
                        say(format!("recovery: {here} of {all} workers are left, which is too few; waiting for more"));
                    }
                    None => {}
                }
            }
            let event = tokio::select! {
                event = listener.next() => event,
                () = wait_until(next_check) => continue,
                how = wait_for_exit(&mut local) => {
                    return Err(BossManError::LocalWorkers(format!("a local worker never joined; {how}")));
                }
            };
            match &event {
                ListenerEvent::Joined { info, .. } => {
                    last_came = Instant::now();
                    here_local += usize::from(local.as_ref().is_some_and(|local| local.contains(info)));
                }
                ListenerEvent::Left { .. } if again.is_some() => listener.ask_to_rejoin(),
                ListenerEvent::Left { .. } => {}
                ListenerEvent::Rejected { .. } if rejections == MAX_REJECTIONS_SHOWN => continue,
                ListenerEvent::Rejected { .. } => rejections += 1,
            }
            say(describe(event, listener.missing()));
        }
        // Only local workers learn a new port. Others return to the port that they know.
        let port = if all_local && !self.open_to_joins { self.port } else { Some(listening.port()) };
        let quiet = self.quiet;
        Ok(Workers { listener, local, runtime: Runtime::current(), count, quiet, host: Host { port, ..self } })
    }

    /// Listens as soon as the port is free.
    async fn listener(&self, identity: &Identity, address: SocketAddr) -> Result<Listener, BossManError> {
        let began = Instant::now();
        loop {
            match Listener::open(identity, address, self.workers) {
                Err(LinkError::PortInUse { .. }) if began.elapsed() < PORT_TIMEOUT => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                opened => return Ok(opened?),
            }
        }
    }

    /// The address to listen on. A run with local workers only listens on the loopback interface,
    /// by default on any free port.
    fn address(&self, all_local: bool) -> Result<SocketAddr, BossManError> {
        let port = match (self.port, std::env::var("MODEL_PORT")) {
            (Some(port), _) => Some(port),
            (None, Ok(text)) if !text.trim().is_empty() => {
                let wrong = || BossManError::Usage(format!("MODEL_PORT={text}: expected a number from 0 to 65535"));
                Some(text.trim().parse().map_err(|_| wrong())?)
            }
            (None, _) => None,
        };
        Ok(match all_local {
            true => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.unwrap_or(0)),
            false => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port.unwrap_or(DEFAULT_PORT)),
        })
    }
}

async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn wait_for_exit(local: &mut Option<LocalWorkers>) -> String {
    match local {
        Some(local) => local.wait_for_exit().await,
        None => std::future::pending().await,
    }
}

fn describe(event: ListenerEvent, missing: usize) -> String {
    match event {
        ListenerEvent::Joined { worker, info, address } => {
            let (host, device, threads) = (info.host, info.device, info.threads);
            format!("{worker} joined from {} ({host}, {device}, {threads} threads), {missing} missing", address.ip())
        }
        ListenerEvent::Left { worker, reason } => format!("{worker} left ({reason})"),
        ListenerEvent::Rejected { address, reason } => format!("turned away {}: {reason}", address.ip()),
    }
}
