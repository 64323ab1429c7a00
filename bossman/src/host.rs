//! Waiting for workers, at first and again where some of them were lost.

use crate::boss::Builder;
use crate::local::{Flags, LocalWorkers};
use crate::output::{self, printable};
use crate::{BossMan, BossManError};
use link::{Identity, LinkError, Listener, ListenerEvent, Transport};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

/// The port where none is given.
const DEFAULT_PORT: u16 = 1024;

/// So many who are not let in are shown; they may be many.
const STRANGERS_SHOWN: u32 = 10;

/// The most characters of a line, which may hold text of workers and a path.
const LONGEST_LINE: usize = 5000;

/// Once all that are left are here again, so long another may come that takes the place of who was lost. A worker that waits for
/// a place asks for one every second.
const FOR_ANOTHER: Duration = Duration::from_millis(1500);
/// Who is not back by then is taken for lost, too. A worker finishes what it computes before it joins again.
const FOR_ALL: Duration = Duration::from_secs(15);
/// A run that has ended has left its port by then.
const FOR_PORT: Duration = Duration::from_secs(5);

/// For whom to wait where a run goes on without workers that were lost.
pub(crate) struct Again {
    /// So many may be left.
    left: usize,
    /// Whether the run can go on with 0, 1, 2, ... workers.
    fits: Vec<bool>,
}

impl Again {
    /// The wait of a run from `builder` that has at most `workers` workers, of which `left` remain.
    pub(crate) fn new(builder: &Builder, workers: usize, left: usize) -> Self {
        let fits = |workers| workers > 0 && builder.check(workers).is_ok();
        Again { left, fits: (0..=workers).map(fits).collect() }
    }

    /// With how many of so many workers the run can go on: as many as possible.
    fn enough(&self, here: usize) -> Option<usize> {
        (1..=here).rev().find(|workers| self.fits.get(*workers) == Some(&true))
    }
}

/// Where the boss listens and for whom it waits.
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
    open: bool,
}

/// Workers that have joined.
pub struct Workers {
    pub(crate) listener: Listener,
    pub(crate) local: Option<LocalWorkers>,
    pub(crate) runtime: Runtime,
    pub(crate) count: usize,
    pub(crate) quiet: bool,
    /// What waited for them, and where.
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

    /// Starts `workers` worker processes on this machine and waits for them. They end with this
    /// process, whatever way it ends.
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
            open: false,
        }
    }

    /// Starts that many of the workers on this machine.
    #[must_use]
    pub fn local(mut self, local: usize) -> Self {
        self.local = local;
        self
    }

    /// Compute threads of each local worker; by default the cores are shared out. Some sums of libtorch
    /// (in normalisation layers, say) depend on it in the last bit.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// How tensors travel between processes of one machine; by default through shared memory.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Whether the local workers run TorchScript layers, which are programs; by default they refuse. Workers that are not
    /// local are asked when they are started.
    #[must_use]
    pub fn allow_torchscript(mut self, allow: bool) -> Self {
        self.allow_torchscript = allow;
        self
    }

    /// The folder from which the local workers may read data by themselves; by default they read none. Workers that are not
    /// local are told when they are started.
    #[must_use]
    pub fn data(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data = Some(folder.into());
        self
    }

    /// Listens on this UDP port rather than on `MODEL_PORT`; 0 takes any free one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Prints on standard error, where standard output is for something else.
    #[must_use]
    pub fn on_stderr(mut self, on_stderr: bool) -> Self {
        self.on_stderr = on_stderr;
        self
    }

    /// Whether others may join the run after it has begun ([`BossMan::open_pool`]); they are then told how, and it listens
    /// to more than this machine.
    #[must_use]
    pub fn open(mut self, open: bool) -> Self {
        self.open = open;
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

    /// The same, where workers were lost: local ones are started afresh, and of the others those are waited for that are left,
    /// and a little for more; fewer than at first may be enough.
    pub(crate) async fn wait_again(self, again: Again) -> Result<Workers, BossManError> {
        self.wait_for(Some(again)).await
    }

    /// Whether it starts workers itself.
    pub(crate) fn starts_workers(&self) -> bool {
        self.local > 0
    }

    /// How many are left where one of so many is lost: local ones are started afresh.
    pub(crate) fn left_of(&self, here: usize) -> usize {
        self.local + here.saturating_sub(self.local).saturating_sub(1)
    }

    async fn wait_for(self, again: Option<Again>) -> Result<Workers, BossManError> {
        if self.workers == 0 || self.workers > usize::from(u16::MAX) || self.local > self.workers {
            let message = format!("{} workers with {} local ones make no run", self.workers, self.local);
            return Err(BossManError::Usage(message));
        }
        let identity = Identity::load_or_create()?;
        let all_local = self.local == self.workers;
        let address = self.address(all_local && !self.open)?;
        let mut listener = self.listener(&identity, address).await?.transport(self.transport);
        let listening = listener.address();
        let dial = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), listening.port());
        let mut local = match self.local {
            0 => None,
            count => {
                let flags = Flags {
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
                output::warn(&printable(&text, LONGEST_LINE));
            } else if !self.quiet {
                output::note(&printable(&text, LONGEST_LINE));
            }
        };
        if again.is_none() && (!all_local || self.open) {
            let host = link::own_address().map_or("<this machine's address>".into(), |ip| ip.to_string());
            let missing = self.workers - self.local;
            let (port, open) = (listening.port(), self.open);
            say(match missing {
                0 => format!("listening on port {port}; to join or leave at any moment, on each machine run"),
                _ if open => format!(
                    "waiting for {missing} worker(s) on port {port}, and for more at any moment; on each machine run"
                ),
                _ => format!("waiting for {missing} worker(s) on port {port}; on each machine run"),
            });
            let line = format!(
                "  MODEL_HOST={host} MODEL_PORT={} MODEL_TICKET={} target/release/worker",
                listening.port(),
                identity.ticket()
            );
            match &self.data {
                None => say(line),
                Some(here) => {
                    say(format!("{line} --data FOLDER"));
                    let here =
                        if here.as_os_str().is_empty() { "this folder".into() } else { here.display().to_string() };
                    say(format!("  where FOLDER holds there what {here} holds here"));
                }
            }
        }
        let (mut strangers, mut asked) = (0, false);
        let mut count = self.workers;
        let (began, mut last_came, mut here_local) = (Instant::now(), Instant::now(), 0);
        while listener.missing() > 0 {
            let here = self.workers - listener.missing();
            let mut look_at = None;
            // Local workers that do not come end, and that is seen.
            if let Some(again) = again.as_ref().filter(|_| here_local == self.local) {
                let until = if here >= again.left { last_came + FOR_ANOTHER } else { began + FOR_ALL };
                match again.enough(here).filter(|_| listener.is_contiguous()) {
                    _ if Instant::now() < until => look_at = Some(until),
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
                () = at(look_at) => continue,
                how = ended(&mut local) => {
                    return Err(BossManError::LocalWorkers(format!("a local worker never joined; {how}")));
                }
            };
            say(match event {
                ListenerEvent::Joined { worker, info, address } => {
                    last_came = Instant::now();
                    here_local += usize::from(local.as_ref().is_some_and(|local| local.has(&info)));
                    format!(
                        "{worker} joined from {} ({}, {}, {} threads), {} missing",
                        address.ip(),
                        info.host,
                        info.device,
                        info.threads,
                        listener.missing()
                    )
                }
                ListenerEvent::Left { worker, reason } => {
                    if again.is_some() {
                        listener.ask_to_rejoin();
                    }
                    format!("{worker} left ({reason})")
                }
                ListenerEvent::Rejected { .. } if strangers == STRANGERS_SHOWN => continue,
                ListenerEvent::Rejected { address, reason } => {
                    strangers += 1;
                    format!("turned away {}: {reason}", address.ip())
                }
            });
        }
        // Local workers alone are told any port; others come to the one that they know.
        let port = if all_local && !self.open { self.port } else { Some(listening.port()) };
        let quiet = self.quiet;
        Ok(Workers { listener, local, runtime: Runtime::current(), count, quiet, host: Host { port, ..self } })
    }

    /// Listens, once the port is free.
    async fn listener(&self, identity: &Identity, address: SocketAddr) -> Result<Listener, BossManError> {
        let began = Instant::now();
        loop {
            match Listener::open(identity, address, self.workers) {
                Err(LinkError::PortInUse { .. }) if began.elapsed() < FOR_PORT => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                opened => return Ok(opened?),
            }
        }
    }

    /// Where to listen: a run of local workers alone is nobody else's business, and takes any free
    /// port where none is asked for.
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

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn ended(local: &mut Option<LocalWorkers>) -> String {
    match local {
        Some(local) => local.ended().await,
        None => std::future::pending().await,
    }
}
