//! Waits for workers, at first and after a loss.

use crate::events::{Event, Events, Invitation, WaitReason};
use crate::status::StatusBoard;
use crate::workers::join_wait::JoinWait;
use crate::workers::local_processes::{worker_command, LocalWorkers, WorkerFlags};
use crate::BossManError;
use link::{Identity, LinkError, Listener, Ticket, Transport, WorkerInfo};
use pipeline::ids::WorkerId;
use pipeline::recovery::{fits_beside, Check, JoinDesk, LastSession};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::{Handle as Runtime, RuntimeFlavor};
use tokio::time::Instant;

/// The default port.
const DEFAULT_PORT: u16 = 1024;

/// The time within which a run that has ended frees its port.
const PORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections are kept alive by tasks of the program's own runtime.
const ONE_THREAD: &str = "the tokio runtime has one thread, so code that blocks it for 3 seconds \
                          loses the workers; use `#[tokio::main]`, or `#[tokio::test(flavor = \
                          \"multi_thread\")]`";

/// The address of the boss and the workers it waits for.
#[derive(Debug, Clone)]
pub struct Host {
    workers: usize,
    local: usize,
    worker_program: Option<PathBuf>,
    threads: Option<usize>,
    devices: Vec<String>,
    port: Option<u16>,
    transport: Transport,
    allow_torchscript: bool,
    data: Option<PathBuf>,
    weights: Option<PathBuf>,
    peak_memory: Option<PathBuf>,
    events: Events,
    /// The status of the run, which is among the observers.
    status: StatusBoard,
    open_to_joins: bool,
    config_dir: Option<PathBuf>,
}

/// Workers that have joined.
pub struct Workers {
    pub(crate) listener: Listener,
    pub(crate) local: Option<LocalWorkers>,
    pub(crate) runtime: Runtime,
    pub(crate) count: usize,
    pub(crate) events: Events,
    /// The settings of the wait, for a wait after a loss.
    pub(crate) host: Host,
}

impl Workers {
    /// Those that are neither local nor among the `known` ones.
    pub(crate) fn newcomers(&self, known: &[WorkerInfo]) -> Vec<WorkerId> {
        let is_known = |info: &WorkerInfo| {
            known.iter().any(|one| one.is_same_process(info))
                || self.local.as_ref().is_some_and(|local| local.contains(info))
        };
        let joined = (0..).map(WorkerId).zip(self.listener.joined().take(self.count));
        joined.filter(|(_, info)| !is_known(info)).map(|(worker, _)| worker).collect()
    }
}

impl Host {
    /// Waits for `workers` workers.
    pub fn new(workers: usize) -> Self {
        let status = StatusBoard::default();
        Host {
            workers,
            local: 0,
            worker_program: None,
            threads: None,
            devices: Vec::new(),
            port: None,
            transport: Transport::default(),
            allow_torchscript: false,
            data: None,
            weights: None,
            peak_memory: None,
            events: status.before(Events::default()),
            status,
            open_to_joins: false,
            config_dir: None,
        }
    }

    /// Sets how many of the workers to start on this machine.
    #[must_use]
    pub fn local(mut self, local: usize) -> Self {
        self.local = local;
        self
    }

    /// Sets the program of local workers. The default is `worker`, beside this program or in
    /// `PATH`. `BOSSMAN_WORKER` takes precedence over both.
    ///
    /// This program itself (`std::env::current_exe()`) will do if its `main` begins with
    /// `worker::Worker::new().main_if_local()`. `cargo run` then needs to build no other.
    #[must_use]
    pub fn worker_program(mut self, program: impl Into<PathBuf>) -> Self {
        self.worker_program = Some(program.into());
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

    /// Sets the devices of local workers, which take them in turn: `["cuda:0", "cuda:1"]`. By
    /// default they take the GPUs of this machine in turn, or the CPU if there are none. A worker
    /// that does not have its device ends, and says which ones it has.
    #[must_use]
    pub fn devices(mut self, devices: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.devices = devices.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how tensors travel between processes of one machine. The default is shared memory.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Lets local workers run TorchScript layers, which are programs. By default they refuse them.
    /// Other workers have a flag for it.
    #[must_use]
    pub fn allow_torchscript(mut self) -> Self {
        self.allow_torchscript = true;
        self
    }

    /// Sets the folder from which local workers may read data. By default they read none. Other
    /// workers have a flag for it.
    #[must_use]
    pub fn data(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data = Some(folder.into());
        self
    }

    /// Sets the folder from which local workers may read weights. By default they read none. Other
    /// workers have a flag for it.
    #[must_use]
    pub fn weights(mut self, folder: impl Into<PathBuf>) -> Self {
        self.weights = Some(folder.into());
        self
    }

    /// Sets the folder of [`peak_memory`](crate::fleet::FleetSettings::peak_memory).
    pub(crate) fn peak_memory(mut self, folder: impl Into<PathBuf>) -> Self {
        self.peak_memory = Some(folder.into());
        self
    }

    /// Sets the UDP port, instead of `MODEL_PORT`. 0 is any free port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Sets the folder of the boss's key and ticket. The default is `BOSSMAN_CONFIG_DIR`, else a
    /// folder in the user's config folder.
    #[must_use]
    pub fn config_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.config_dir = Some(folder.into());
        self
    }

    /// Sets the observers of the wait and of the run. By default a console shows both on standard
    /// output.
    #[must_use]
    pub fn events(mut self, events: Events) -> Self {
        self.events = self.status.before(events);
        self
    }

    /// Sets the observers of the wait and of the run, and this status, which is among them. All
    /// sessions of the run share it.
    pub(crate) fn observed_by(mut self, events: Events, status: StatusBoard) -> Self {
        (self.events, self.status) = (events, status);
        self
    }

    /// The status that callers with the ticket are told.
    pub(crate) fn status(&self) -> StatusBoard {
        self.status.clone()
    }

    /// Lets workers join after the run has begun ([`crate::BossMan::open_pool`]). The boss then
    /// prints how, and accepts workers from other machines.
    #[must_use]
    pub fn open_to_joins(mut self) -> Self {
        self.open_to_joins = true;
        self
    }

    /// Whether workers may join after the run has begun.
    pub(crate) fn is_open_to_joins(&self) -> bool {
        self.open_to_joins
    }

    /// Prints nothing.
    #[must_use]
    pub fn quiet(self) -> Self {
        self.events(Events::unobserved())
    }

    /// Listens and waits until every worker is there.
    ///
    /// # Errors
    /// As for [`crate::BossMan::setup_host`] and [`crate::BossMan::setup_local`].
    pub async fn wait(self) -> Result<Workers, BossManError> {
        if Runtime::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            self.events.warn(ONE_THREAD);
        }
        let places = self.workers;
        self.wait_for(WaitReason::Start, move |_| JoinDesk::new(places)).await
    }

    /// Waits again after a session that failed or ended for more workers. Starts local workers
    /// afresh. Waits for the remaining other workers and the newcomers, and briefly for spares.
    /// Fewer may suffice: `fits` tells whether the run can continue with a number of workers, and
    /// `check` judges spares beside others, and unfit workers anew if too few remain.
    pub(crate) async fn wait_for_rejoin(
        self,
        last: LastSession<WorkerInfo>,
        fits: impl Fn(usize) -> bool,
        check: impl Fn(&[WorkerInfo]) -> Check + Send + Sync + 'static,
    ) -> Result<Workers, BossManError> {
        let grows = !last.newcomers.is_empty();
        let reason = if grows { WaitReason::Grow } else { WaitReason::Rejoin };
        let places = self.workers;
        let fits_beside = fits_beside(places, check);
        let desk = move |local| JoinDesk::again(places, local, last, fits, fits_beside);
        self.wait_for(reason, desk).await
    }

    /// Whether the boss starts workers itself.
    pub(crate) fn starts_workers(&self) -> bool {
        self.local > 0
    }

    /// Waits at the desk that `desk` makes from the random numbers of the local workers.
    async fn wait_for(
        self,
        reason: WaitReason,
        desk: impl FnOnce(Vec<u64>) -> JoinDesk<WorkerInfo>,
    ) -> Result<Workers, BossManError> {
        if self.workers == 0 || self.workers > usize::from(u16::MAX) || self.local > self.workers {
            let message =
                format!("{} workers with {} local ones make no run", self.workers, self.local);
            return Err(BossManError::Usage(message));
        }
        let identity = match &self.config_dir {
            Some(folder) => Identity::load_or_create_in(folder)?,
            None => Identity::load_or_create()?,
        };
        if matches!(reason, WaitReason::Start) {
            identity.warnings().iter().for_each(|warning| self.events.warn(warning));
        }
        let only_local = self.local == self.workers && !self.open_to_joins;
        let address = self.address(only_local)?;
        let listener = self.listener(&identity, address).await?.transport(self.transport);
        let listener = listener.status(self.status.text());
        let port = listener.address().port();
        self.events.report(&Event::Listening { port });
        let local = self.start_local(port, identity.ticket())?;
        let invitation = (!only_local).then(|| Invitation {
            missing: self.workers - self.local,
            address: link::own_address(),
            port,
            ticket: identity.ticket().clone(),
            program: worker_command(self.worker_program.as_deref()),
            is_pool: self.open_to_joins,
            data: self.data.clone(),
            weights: self.weights.clone(),
        });
        let (workers, missing, waited_s) = (self.workers, self.workers, 0);
        self.events.report(&Event::Waiting { missing, workers, reason, waited_s, invitation });
        let instances = local.as_ref().map_or_else(Vec::new, |local| local.instances().to_vec());
        let listener = listener.desk(desk(instances));
        let mut wait = JoinWait::new(listener, local, self.events.clone());
        let count = wait.run().await?;
        self.status.wait_ended(count);
        let JoinWait { listener, local, .. } = wait;
        // Only local workers learn a new port. Others return to the port that they know.
        let port = if only_local { self.port } else { Some(port) };
        let (runtime, events) = (Runtime::current(), self.events.clone());
        Ok(Workers { listener, local, runtime, count, events, host: Host { port, ..self } })
    }

    fn start_local(
        &self,
        port: u16,
        ticket: &Ticket,
    ) -> Result<Option<LocalWorkers>, BossManError> {
        if self.local == 0 {
            return Ok(None);
        }
        let flags = WorkerFlags {
            program: self.worker_program.clone(),
            threads: self.threads,
            devices: self.devices.clone(),
            transport: self.transport,
            allow_torchscript: self.allow_torchscript,
            data: self.data.clone(),
            weights: self.weights.clone(),
            peak_memory: self.peak_memory.clone(),
        };
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        LocalWorkers::start(self.local, &flags, address, ticket).map(Some)
    }

    /// Listens as soon as the port is free.
    async fn listener(
        &self,
        identity: &Identity,
        address: SocketAddr,
    ) -> Result<Listener, BossManError> {
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
                let wrong = || {
                    BossManError::Usage(format!(
                        "MODEL_PORT={text}: expected a number from 0 to 65535"
                    ))
                };
                Some(text.trim().parse().map_err(|_| wrong())?)
            }
            (None, _) => None,
        };
        Ok(match all_local {
            true => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.unwrap_or(0)),
            false => {
                SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port.unwrap_or(DEFAULT_PORT))
            }
        })
    }
}
